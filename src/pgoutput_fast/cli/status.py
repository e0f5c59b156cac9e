"""`pgoutput-fast status`: the progress of a mirror, which may run in another process."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pgoutput_fast.base.arguments import expect_given
from pgoutput_fast.base.display import counted, escaped, some_of
from pgoutput_fast.cli.arguments import DSN, IcebergCatalog, Json, PasswordCommand, Target
from pgoutput_fast.cli.problems import PROBLEM, format_problem
from pgoutput_fast.cli.screen import line, lsn_text, objects, size, table
from pgoutput_fast.cli.services import catalog_properties

if TYPE_CHECKING:
    from pgoutput_fast.mirror import TableStatus

__all__ = ["status"]


def status(
    target: Target = "",
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    iceberg_catalog: IcebergCatalog = None,
    json: Json = False,
) -> None:
    """Show how far each table of a mirror is, and what is wrong with it.

    The mirror may run in another process, or not at all. "behind" is an upper bound: how much of the server's log (WAL)
    and how many seconds of changes the current table lacks. What is not known is empty. The exit status is 1 if a table
    or its history is stopped.

    Example: pgoutput-fast status lake/ --dsn dbname=shop
    """
    expect_given({"TARGET": target})
    from pgoutput_fast.mirror import status_of
    from pgoutput_fast.mirror.slot import REPAIR
    from pgoutput_fast.mirror.state.table_record import NEW

    found = status_of(target, dsn, iceberg_catalog=catalog_properties(iceberg_catalog))
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
                    lsn_text(each.position),
                    None if each.lag_bytes is None else size(each.lag_bytes),
                    None if each.lag_seconds is None else f"{each.lag_seconds:,.1f}",
                    "some" if each.waiting_rows is None else each.waiting_rows or "nothing",
                )
                for each in found
            ],
            right=["behind", "seconds"],
        )
    if not json and not _show_slot(target, dsn) and found:
        name_it = "" if dsn else " (name it with --dsn, or in PGOUTPUT_FAST_DSN)"
        line(f"the server does not answer{name_it}, so the lag of the tables is unknown", error=True)
    for each in found if not json else ():
        if each.rejects:
            what = counted(each.rejects, "value or change", "values or changes")
            line(
                f"{escaped(each.table)}: {what} without an Arrow form, or not decoded: see its _rejects",
                error=True,
            )
    for each in found if not json else ():
        if each.load is not None:
            line(f"{escaped(each.table)}: loading: {each.load}")
    # Each table is new before its first load.
    wrong = [each for each in found if (each.error and each.error != NEW) or each.history_error]
    of_tables: dict[str, list[str]] = {}  # a lost slot stops many for the same reason
    for each in wrong if not json else ():
        for what, error in (("", each.error), ("its history does not go on: ", each.history_error)):
            if error is not None:
                of_tables.setdefault(what + format_problem(RuntimeError(error)), []).append(
                    escaped(each.table)
                )
    for error, tables in of_tables.items():
        line(f"{some_of(tables)}: {escaped(error)}", "bold red", error=True)
    if not json and any(each.state != "load" and REPAIR not in (each.error or "") for each in wrong):
        line("once that is fixed: pgoutput-fast mirror ... --reload TABLE loads a table again", error=True)
    if wrong:
        raise typer.Exit(PROBLEM)


def _show_slot(target: str, dsn: str) -> bool:
    """Reports whether the slot has a reader. Returns whether the server answers."""
    from pgoutput_fast.capture import find_slot
    from pgoutput_fast.mirror.service.stored import slot_of
    from pgoutput_fast.postgres.errors import NO_ANSWER

    name = slot_of(target)
    try:
        slot = find_slot(dsn, name)
    except NO_ANSWER:
        return False
    if slot is None:
        line(f"slot {escaped(name)} is gone", "bold red", error=True)
        return True
    reader = "nobody reads it: the mirror does not run"
    if slot.active_pid is not None:
        reader = f"process {slot.active_pid} of the server sends it"
    line(f"slot {escaped(name)}: {reader}; the server keeps {size(slot.kept_bytes or 0)}")
    return True


def _values(each: TableStatus) -> dict[str, Any]:
    """The state of a table for programs. LSNs are texts in the server's format."""
    values = asdict(each)
    if each.load is not None:
        values["load"] |= {"part": each.load.part, "eta_seconds": each.load.eta_seconds}
    for name in ("position", "history_position"):
        values[name] = lsn_text(values[name])
    # Only the process of the mirror knows these values.
    for name in ("applied_rows", "merges", "merge_seconds"):
        del values[name]
    return values
