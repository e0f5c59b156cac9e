"""`pgoutput-fast verify`: whether a mirror has the rows of its server."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgoutput_fast.base.arguments import expect_given
from pgoutput_fast.base.display import escaped
from pgoutput_fast.cli.arguments import DSN, IcebergCatalog, Json, PasswordCommand, Tables, Target
from pgoutput_fast.cli.problems import PROBLEM
from pgoutput_fast.cli.screen import line, lsn_text, objects, table
from pgoutput_fast.cli.services import Numeric, catalog_properties, numeric_type
from pgoutput_fast.cli.terminating import terminating

if TYPE_CHECKING:
    from pgoutput_fast.mirror import TableVerification

__all__ = ["verify"]

# What a sample says of a row.
_WHAT = {
    "missing": "is missing in the mirror",
    "extra": "is only in the mirror",
    "changed": "has other values in the mirror",
}


def verify(
    target: Target = "",
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    tables: Tables = None,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="sessions that read at the same time")] = 1,
    wait_seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="how long to wait until a running mirror has what committed before the start",
        ),
    ] = 60.0,
    numeric: Numeric = "string",
    iceberg_catalog: IcebergCatalog = None,
    json: Json = False,
) -> None:
    """Compare the tables of a mirror with those of its server, all rows and columns.

    Both sides are read at the same position, and compared by digests of ranges of keys. Nothing is changed. Let the
    mirror run meanwhile: otherwise rows that have changed since count as different. Some keys of rows that differ are
    shown, but no other values. The exit status is 0 if all tables are equal, and 1 otherwise.

    Example: pgoutput-fast verify lake/ --dsn dbname=shop
    """
    expect_given({"TARGET": target})
    from pgoutput_fast.mirror import verify as compared
    from pgoutput_fast.schema.options import Options

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with terminating():  # SIGTERM ends it by an exception, so that the server drops the temporary slot
        found = compared(
            target,
            dsn,
            tables=tables,
            options=Options(on_error="quarantine", numeric=numeric_type(numeric)),
            threads=threads,
            wait_seconds=wait_seconds,
            iceberg_catalog=catalog_properties(iceberg_catalog),
        )
    if json:
        objects(map(_values, found))
    elif not found:
        line("the mirror has no table")
    else:
        table(
            ["table", "rows", "in the mirror", "ranges", "differ", "result"],
            [_cells(each) for each in found],
            right=["rows", "in the mirror", "ranges", "differ"],
        )
        for each in found:
            _show_difference(each)
    if not all(each.equal for each in found):
        raise typer.Exit(PROBLEM)


def _cells(each: TableVerification) -> tuple[object, ...]:
    name = escaped(each.table)
    if each.problem is not None:
        return name, None, None, None, None, "not compared"
    numbers = (f"{number:,}" for number in (each.rows, each.mirror_rows, each.ranges, each.different))
    return name, *numbers, "equal" if each.equal else "different"


def _show_difference(each: TableVerification) -> None:
    if each.problem is not None:
        line(f"{escaped(each.table)}: {escaped(each.problem)}", "bold red", error=True)
    elif each.is_behind and not each.equal:
        line(escaped(str(each)), "bold red", error=True)
    for what, key in each.samples:
        values = ", ".join(f"{name}={value}" for name, value in key.items())
        line(f"{escaped(each.table)}: the row {escaped(values)} {_WHAT[what]}", error=True)


def _values(each: TableVerification) -> dict[str, Any]:
    """The values of a result for programs. LSNs are texts in the server's format."""
    values = {**asdict(each), "equal": each.equal}
    for name in ("position", "server_position"):
        values[name] = lsn_text(values[name])
    values["samples"] = [{"what": what, "key": key} for what, key in each.samples]
    return values
