"""`pgoutput-fast query`: SQL of DuckDB over the tables of a mirror, all at one position."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.base.display import error_text, escaped
from pgoutput_fast.cli.arguments import IcebergCatalog, Target, position_at
from pgoutput_fast.cli.screen import line, table
from pgoutput_fast.cli.services import catalog_properties
from pgoutput_fast.cli.terminating import terminating
from pgoutput_fast.protocol.lsn import format_lsn

if TYPE_CHECKING:
    import pyarrow as pa

    from pgoutput_fast.cli.views import Views

__all__ = ["query"]

# A screen shows no more rows. All of them together would have to be in memory for the widths of the columns.
_MOST_ROWS = 1000


class _Form(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def query(
    context: typer.Context,
    target: Target = "",
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL",
            show_default=False,
            help="one SELECT, in quotes; - reads it from the standard input; without it, the tables are listed",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|LSN",
            show_default=False,
            help="the tables as of this time (such as 2026-11-29T12:00:00+00:00) or position, exactly",
        ),
    ] = None,
    form: Annotated[
        _Form, typer.Option("--format", help="a table for a person, or CSV or a JSON object per row")
    ] = _Form.TABLE,
    iceberg_catalog: IcebergCatalog = None,
) -> None:
    """Query the tables of a mirror with DuckDB, all at one position.

    The tables have their names on the server, and all changes that the mirror has read, also those that are not merged
    yet. The mirror may run meanwhile. The query cannot change the tables or reach another file, and reads only the
    columns that DuckDB needs.

    Example: pgoutput-fast query lake/

    Example: pgoutput-fast query lake/ "SELECT status, count(*) FROM orders GROUP BY status"

    Example: pgoutput-fast query lake/ "FROM orders WHERE id = 7" --at 2026-11-29T12:00:00+00:00 --format json
    """
    expect_given({"TARGET": target})
    if context.args:
        raise UsageError(
            f"put the SQL into quotes: the shell has made several words of it ({sql} {context.args[0]} ...)"
        )
    position = "latest" if at is None else position_at(at)
    catalog = catalog_properties(iceberg_catalog)
    # Slow, and a missing DuckDB is an error before anything is read.
    from pgoutput_fast.cli.views import Views, expect_select
    from pgoutput_fast.mirror.view.datasets import TablesAt
    from pgoutput_fast.tables.options import TableOptions

    if sql == "-":
        sql = sys.stdin.read()
    if sql is not None:
        expect_select(sql)
    tables = TablesAt(target, position, TableOptions(None, catalog))
    with terminating(), Views(tables, sql) as views:
        if sql is None:
            _list(views, form)
        else:
            _write(*views.run(sql), form)
    if form == _Form.TABLE:
        line(f"as of {_shown(tables.position)}", error=True)


def _list(views: Views, form: _Form) -> None:
    """Lists the tables with their columns, or with the reason why a table cannot be read."""
    import pyarrow as pa

    found = [
        (name, ", ".join(f"{column} {kind.lower()}" for column, kind in columns), "")
        for name, columns in views.columns().items()
    ]
    found += [(name, "", error_text(problem)) for name, problem in views.problems.items()]
    names = ("table", "columns", "problem") if views.problems else ("table", "columns")
    rows = [dict(zip(names, each, strict=False)) for each in sorted(found)]
    schema = pa.schema([(name, pa.string()) for name in names])
    _write(schema, [], iter([pa.Table.from_pylist(rows, schema)]), form)


def _write(schema: pa.Schema, integers: Sequence[str], tables: Iterator[pa.Table], form: _Form) -> None:
    from pgoutput_fast.cli.rows import write_csv, write_json_lines

    if form == _Form.TABLE:
        _show(schema, tables)
    elif form == _Form.CSV:
        sys.stdout.flush()
        write_csv(sys.stdout.buffer, schema, tables)
    else:
        if double := sorted({name for name in schema.names if schema.names.count(name) > 1}):
            raise UsageError(
                f"the result has two columns {escaped(double[0])}, of which JSON has one: name them with AS"
            )
        write_json_lines(sys.stdout, tables, integers)


def _show(schema: pa.Schema, tables: Iterator[pa.Table]) -> None:
    """Shows the first rows as a table."""
    import pyarrow as pa

    from pgoutput_fast.cli.rows import cells

    shown: list[list[str]] = []
    for rows in tables:
        shown += cells(rows.slice(0, _MOST_ROWS + 1 - len(shown)))
        if len(shown) > _MOST_ROWS:
            break
    numbers = [
        field.name
        for field in schema
        if pa.types.is_integer(field.type)
        or pa.types.is_decimal(field.type)
        or pa.types.is_floating(field.type)
    ]
    table(
        [escaped(name) for name in schema.names],
        shown[:_MOST_ROWS],
        right=[escaped(name) for name in numbers],
    )
    if len(shown) > _MOST_ROWS:
        line(
            f"only the first {_MOST_ROWS:,} rows are shown: --format csv or --format json has all", error=True
        )


def _shown(position: datetime | int) -> str:
    return format_lsn(position) if isinstance(position, int) else position.isoformat()
