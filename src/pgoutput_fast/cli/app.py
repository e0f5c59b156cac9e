"""The commands of `pgoutput-fast`, one module each."""

from __future__ import annotations

import re
from inspect import getdoc
from typing import Annotated

import typer

from pgoutput_fast.cli.bench import bench
from pgoutput_fast.cli.capture import capture
from pgoutput_fast.cli.check import check
from pgoutput_fast.cli.decode import decode
from pgoutput_fast.cli.demo import demo
from pgoutput_fast.cli.inspect import inspect
from pgoutput_fast.cli.mirror import mirror
from pgoutput_fast.cli.query import query
from pgoutput_fast.cli.segments import segments
from pgoutput_fast.cli.slots import alter, create, drop, ls
from pgoutput_fast.cli.snapshot import snapshot
from pgoutput_fast.cli.status import status
from pgoutput_fast.cli.tables import tables
from pgoutput_fast.cli.verify import verify

__all__ = ["app"]


def _group(name: str, text: str) -> typer.Typer:
    # Help without boxes: it is the same in a pipe, and examples in it can be copied.
    return typer.Typer(
        name=name, help=text, no_args_is_help=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )


def _show_examples(group: typer.Typer) -> None:
    """Moves the examples in docstrings to the end of the help, each on its own line, as written."""
    for each in group.registered_commands:
        text, *examples = re.split(r"\n\n(?=Example:)", getdoc(each.callback) or "")
        lines = [" ".join(example.split()[1:]) for example in examples]
        each.help = text
        each.epilog = "\n".join(
            ["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)]
        )


def _show_version(is_set: bool) -> None:
    if is_set:
        from pgoutput_fast import __version__

        typer.echo(f"pgoutput-fast {__version__}")
        raise typer.Exit


app = _group("pgoutput-fast", "PostgreSQL's logical replication: inspect, capture, decode and mirror it.")
_slots = _group("slots", "List, create, alter and drop replication slots.")
app.command()(check)
app.add_typer(_slots)
_slots.command()(ls)
_slots.command()(create)
_slots.command()(alter)
_slots.command()(drop)
app.command()(snapshot)
app.command()(capture)
app.command()(mirror)
app.command()(status)
app.command()(tables)
app.command(context_settings={"allow_extra_args": True})(query)
app.command()(verify)
app.command()(inspect)
app.command()(decode)
app.add_typer(segments)
app.command()(bench)
app.command()(demo)
for _each in (app, _slots, segments):
    _show_examples(_each)


@app.callback(
    invoke_without_command=True,
    epilog="Every command has --help, with an example. --debug shows the trace of an error.",
)
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """PostgreSQL's logical replication: inspect, capture, decode and mirror it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_slots.callback(
    invoke_without_command=True, epilog="\b\nExample:\n  pgoutput-fast slots ls --dsn dbname=shop"
)
def _slots_options(context: typer.Context) -> None:
    """List, create, alter and drop replication slots."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
