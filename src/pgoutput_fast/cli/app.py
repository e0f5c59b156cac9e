"""The commands of `pgoutput-fast`, each in a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from typing import Annotated, Any

import typer

from pgoutput_fast.cli.bench import bench
from pgoutput_fast.cli.check import check
from pgoutput_fast.cli.decode import decode
from pgoutput_fast.cli.forwarded import FORWARDED, capture, demo, mirror
from pgoutput_fast.cli.inspect import inspect
from pgoutput_fast.cli.segments import segments
from pgoutput_fast.cli.slots import create, drop, ls
from pgoutput_fast.cli.snapshot import snapshot

__all__ = ["app"]

_EXAMPLE = "Example:"


def _group(name: str, text: str) -> typer.Typer:
    # Help without boxes: it is the same in a pipe, and an example in it can be copied.
    return typer.Typer(
        name=name, help=text, no_args_is_help=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )


def _add(group: typer.Typer, *commands: Callable[..., Any], **more: Any) -> None:
    """Adds commands. The example at the end of a docstring is the end of its help, as it is written."""
    for each in commands:
        text, _, example = (getdoc(each) or "").partition(f"\n\n{_EXAMPLE}")
        lines = "\n".join(f"  {line.strip()}" for line in example.strip().split("\n"))
        group.command(help=text, epilog=f"\b\n{_EXAMPLE}\n{lines}", **more)(each)


def _show_version(wanted: bool) -> None:
    if wanted:
        from pgoutput_fast import __version__

        typer.echo(f"pgoutput-fast {__version__}")
        raise typer.Exit


app = _group(
    "pgoutput-fast", "Logical replication of PostgreSQL: look at it, capture it, decode it, mirror it."
)
_slots = _group("slots", "List, create and drop replication slots.")
_add(app, check)
app.add_typer(_slots)
_add(_slots, ls, create, drop)
_add(app, snapshot)
_add(app, capture, mirror, **FORWARDED)
_add(app, bench)
_add(app, inspect, decode)
app.add_typer(segments)
_add(app, demo, **FORWARDED)


@app.callback(
    invoke_without_command=True,
    epilog="Every command has --help, with an example. --debug shows the trace of an error.",
)
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end."),
    ] = False,
) -> None:
    """Logical replication of PostgreSQL: look at it, capture it, decode it, mirror it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_slots.callback(
    invoke_without_command=True, epilog="\b\nExample:\n  pgoutput-fast slots ls --dsn dbname=shop"
)
def _slots_options(context: typer.Context) -> None:
    """List, create and drop replication slots."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
