"""The commands of `pgoutput-fast`, each in a module of its own."""

from __future__ import annotations

import typer

from pgoutput_fast.cli.check import check
from pgoutput_fast.cli.decode import decode
from pgoutput_fast.cli.inspect import inspect
from pgoutput_fast.cli.segments import segments

__all__ = ["app"]

app = typer.Typer(
    name="pgoutput-fast",
    help="Logical replication of PostgreSQL: look at it, capture it, decode it, mirror it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(check)
app.command()(inspect)
app.command()(decode)
app.add_typer(segments)


@app.callback()
def _options() -> None:
    """Options that all commands have come here."""
