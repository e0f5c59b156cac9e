"""`pgoutput-fast status`: the progress of a mirror, which may run in another process."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgoutput_fast.base.display import escaped
from pgoutput_fast.cli.arguments import DSN, IcebergCatalog, Json
from pgoutput_fast.cli.messages import counted
from pgoutput_fast.cli.problems import PROBLEM, expect_given
from pgoutput_fast.cli.screen import line, objects, size, table
from pgoutput_fast.cli.services import name_value_pairs
from pgoutput_fast.protocol.lsn import format_lsn

if TYPE_CHECKING:
    from pgoutput_fast.mirror import TableStatus

__all__ = ["status"]


def status(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", show_default=False, help="of the mirror: a directory or a URI")
    ] = "",
    dsn: DSN = "",
    iceberg_catalog: IcebergCatalog = None,
    json: Json = False,
) -> None:
    """Show how far each table of a mirror is, and what is wrong with it.

    The mirror may run in another process, or not at all. "behind" is an upper bound: how much of the server's log (WAL)
    and how many seconds of changes the current table lacks. What is not known is empty. The exit status is 1 if a table
    is stopped, or its history.

    Example: pgoutput-fast status lake/ --dsn dbname=shop
    """
    expect_given({"TARGET": target})
    from pgoutput_fast.mirror import status_of

    catalog = name_value_pairs("--iceberg-catalog", iceberg_catalog, "type=rest")
    found = status_of(target, dsn, iceberg_catalog=catalog or None)
    if json:
        objects(map(_values, found))
    elif not found:
        line("the mirror has no table yet: its first load is not complete")
    else:
        table(
            ["table", "state", "position", "behind", "seconds", "waiting"],
            [
                (
                    escaped(each.table),
                    each.state,
                    _position(each.position),
                    None if each.lag_bytes is None else size(each.lag_bytes),
                    None if each.lag_seconds is None else f"{each.lag_seconds:,.1f}",
                    "some" if each.waiting_rows is None else each.waiting_rows or "nothing",
                )
                for each in found
            ],
            right=["behind", "seconds"],
        )
    if not json:
        _show_slot(target, dsn)
    if found and not json and all(each.lag_bytes is None for each in found if each.state == "follow"):
        line("the server does not answer, so the lag of the tables is unknown", error=True)
    for each in found if not json else ():
        if each.rejects:
            what = counted(each.rejects, "value or change", "values or changes")
            line(
                f"{escaped(each.table)}: {what} without an Arrow form, or not decoded: see its _rejects",
                error=True,
            )
    wrong = [each for each in found if each.error or each.history_error]
    for each in wrong if not json else ():
        for what, error in (("", each.error), ("its history does not go on: ", each.history_error)):
            if error is not None:
                line(f"{escaped(each.table)}: {what}{escaped(error)}", "bold red", error=True)
    if not json and any(each.state != "load" for each in wrong):
        line("once that is fixed: pgoutput-fast mirror ... --reload TABLE loads a table again", error=True)
    if wrong:
        raise typer.Exit(PROBLEM)


def _show_slot(target: str, dsn: str) -> None:
    """Reports whether the slot has a reader, if the server answers."""
    from pgoutput_fast.capture import find_slot
    from pgoutput_fast.mirror.service.stored import slot_of

    name = slot_of(target)
    try:
        slot = find_slot(dsn, name)
    except Exception:
        return  # the lags are missing for the same reason, which is already reported
    if slot is None:
        line(f"slot {escaped(name)} is gone", "bold red", error=True)
        return
    reader = "nobody reads it: the mirror does not run"
    if slot.active_pid is not None:
        reader = f"process {slot.active_pid} of the server sends it"
    line(f"slot {escaped(name)}: {reader}; the server keeps {size(slot.kept_bytes or 0)}")


def _position(lsn: int | None) -> str | None:
    return None if lsn is None else format_lsn(lsn)


def _values(each: TableStatus) -> dict[str, Any]:
    """The state of a table for programs. LSNs are texts in the server's format."""
    values = asdict(each)
    for name in ("position", "history_position"):
        values[name] = _position(values[name])
    # Only the process of the mirror knows these values.
    for name in ("applied_rows", "merges", "merge_seconds"):
        del values[name]
    return values
