"""`pgoutput-fast tables`: the current tables of a mirror, as they are now or were at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from pgoutput_fast.base.arguments import expect_given
from pgoutput_fast.base.display import escaped
from pgoutput_fast.cli.arguments import DSN, IcebergCatalog, Json, PasswordCommand, Target, position_at
from pgoutput_fast.cli.screen import line, lsn_text, objects, size, table
from pgoutput_fast.cli.services import catalog_properties

__all__ = ["tables"]


def tables(
    target: Target = "",
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|LSN",
            show_default=False,
            help="the tables as of this time (such as 2026-11-29T12:00:00+00:00) or position, by the newest point "
            "that is not later",
        ),
    ] = None,
    iceberg_catalog: IcebergCatalog = None,
    json: Json = False,
) -> None:
    """Show the current tables of a mirror: rows, bytes, position, lag, state and rejects.

    The mirror may run in another process, or not at all. What is not known is empty; all tables of a DuckDB file share
    its bytes. With --at, it shows the versions of a recorded point, which you can read as long as the mirror keeps it.

    Example: pgoutput-fast tables lake/ --dsn dbname=shop
    """
    expect_given({"TARGET": target})
    catalog = catalog_properties(iceberg_catalog)
    if at is None:
        _show_now(target, dsn, catalog, json=json)
    else:
        _show_then(target, position_at(at), catalog, json=json)


def _show_now(target: str, dsn: str, catalog: dict[str, str] | None, *, json: bool) -> None:
    from pgoutput_fast.mirror import status_of
    from pgoutput_fast.mirror.service.stored import sizes_of

    states = status_of(target, dsn, iceberg_catalog=catalog)
    sizes = sizes_of(target, {each.table: None for each in states}, iceberg_catalog=catalog)
    found = []
    for each in states:
        rows, nbytes = sizes.get(each.table, (None, None))
        values: dict[str, Any] = {"table": each.table, "state": each.state, "rows": rows, "bytes": nbytes}
        values |= {"position": lsn_text(each.position)}
        values |= {"lag_bytes": each.lag_bytes, "lag_seconds": each.lag_seconds, "rejects": each.rejects}
        found.append(values)
    _show(found, json=json)


def _show_then(target: str, moment: datetime | int, catalog: dict[str, str] | None, *, json: bool) -> None:
    from pgoutput_fast.mirror import at as versions_at
    from pgoutput_fast.mirror.service.stored import sizes_of

    versions = versions_at(target, moment)
    sizes = sizes_of(target, versions, iceberg_catalog=catalog)
    found = []
    for name, version in sorted(versions.items()):
        rows, nbytes = sizes[name]
        found.append({"table": name, "version": version, "rows": rows, "bytes": nbytes})
    _show(found, json=json)


def _show(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        objects(found)
    elif not found:
        line("the mirror has no table yet: its first load is not complete")
    else:
        columns = [_COLUMNS.get(name, name) for name in found[0]]
        right = [name for name in columns if name not in ("table", "state", "position")]
        table(columns, [[_cell(*each) for each in values.items()] for values in found], right=right)


_COLUMNS = {"lag_bytes": "behind", "lag_seconds": "seconds"}


def _cell(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if name in ("bytes", "lag_bytes"):
        return size(value)
    if name == "table":
        return escaped(value)
    return value if isinstance(value, str) else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
