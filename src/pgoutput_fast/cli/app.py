"""The commands of `pgoutput-fast`, each in a module of its own."""

from __future__ import annotations

import typer

from pgoutput_fast.cli.check import check

__all__ = ["app"]

app = typer.Typer(
    name="pgoutput-fast",
    help="Logical replication of PostgreSQL: look at it, capture it, decode it, mirror it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(check)


@app.callback()
def _options() -> None:
    """Options that all commands have come here."""
