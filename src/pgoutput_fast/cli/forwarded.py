"""`pgoutput-fast capture`, `mirror` and `demo`: the programs of these packages, which know their options themselves."""

from __future__ import annotations

from typing import Any

import typer

from pgoutput_fast.stopping import stop_at_once

__all__ = ["FORWARDED", "capture", "demo", "mirror"]

FORWARDED: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""How typer gives all arguments to a command as they are, `--help` included."""


def capture(context: typer.Context) -> int:
    """Write the changes of a slot as segments, until it is stopped.

    Example: pgoutput-fast capture --dsn dbname=shop --slot to_lake --publication shop --path segments/
    """
    _prepare(context)
    if context.obj:
        from pgoutput_fast.capture.own_process import interrupt_nobody

        interrupt_nobody()
    from pgoutput_fast.capture.__main__ import main

    return main(context.args, prog=context.command_path, raises=True)


def mirror(context: typer.Context) -> int:
    """Keep tables of a lake equal to those of a server.

    Example: pgoutput-fast mirror --dsn dbname=shop --slot to_lake --publication shop --target lake/
    """
    _prepare(context)
    from pgoutput_fast.mirror.__main__ import main

    return main(context.args, prog=context.command_path, raises=True)


def demo(context: typer.Context) -> int:
    """Show the whole way on this machine, from a server to a lake.

    Example: pgoutput-fast demo --orders 2000
    """
    from pgoutput_fast.demo.__main__ import main

    return main(context.args, prog=context.command_path)


def _prepare(context: typer.Context) -> None:
    """Lets a long running process need less memory. `main` says whether the process has nothing else to do.

    The program has its own handler of Ctrl-C, as soon as its modules are loaded.
    """
    if context.obj:
        stop_at_once()
        from pgoutput_fast.capture.own_process import leave_out_pandas

        leave_out_pandas()
