"""Arguments shared by several commands."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

__all__ = ["DSN", "IcebergCatalog", "Json", "Publications", "SlotName"]

DSN: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="DSN",
        envvar="PGOUTPUT_FAST_DSN",
        show_envvar=False,
        show_default=False,
        help="libpq's connection string or URI; $PGOUTPUT_FAST_DSN, or else libpq's own variables, if it is not given",
    ),
]
Publications: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--publication",
        "-p",
        metavar="NAME",
        help="a publication whose changes you want; for several, give it several times",
    ),
]
SlotName: TypeAlias = Annotated[
    str | None, typer.Option("--slot", "-s", metavar="NAME", help="the replication slot")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="one JSON object a line, for programs")]
IcebergCatalog: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="a property of the pyiceberg catalog that has the tables; may be repeated",
    ),
]
