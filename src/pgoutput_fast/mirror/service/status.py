"""The status of mirrored tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pgoutput_fast.base.display import counted
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.tables.errors import RELOAD

if TYPE_CHECKING:
    from pgoutput_fast.mirror.follow.tables import MirroredTable
    from pgoutput_fast.mirror.state.mirror_state import Progress
    from pgoutput_fast.snapshot.progress import LoadProgress

__all__ = ["TableStatus", "table_status", "without_slot"]


_STATES = {
    "load": "to be loaded",
    "follow": "follows",
    "stopped": "stopped",
    "unpublished": "not published any more",
}


@dataclass(frozen=True)
class TableStatus:
    """The state of one mirrored table.

    Attributes:
        table: qualified name, quoted as in SQL.
        state: `load` while it must be loaded, `follow` while changes are applied, `stopped` after an error, or if the
            mirror cannot go on with its slot, `unpublished` if it is no longer published: it stays as it is.
        position: all commits up to this LSN are in the current table; None before its first load.
        history_position: all commits up to this LSN are in the history; None before its first load.
        version: the version of the current table.
        waiting_rows: changes that are in the history and not yet in the current table. None if they are in another
            process.
        applied_rows: changes that this process has applied to the current table.
        lag_bytes: bytes of WAL from `position` to the end of the server's WAL; None if the server was not asked, or if
            the table is not published.
        lag_seconds: everything that committed longer ago is in the current table. An upper bound; None if unknown.
        error: why it is stopped, or must be loaded.
        history_error: why its history is stopped.
        merges: how often this process has changed the current table.
        merge_seconds: the time for that.
        rejects: how many values and changes in its rejects have no Arrow form, or could not be decoded.
        renamed: the name that it has got on the server since its load; None if it is `table`.
        load: the progress of its load; None if there is none. In another process, only of a table of many pages with a
            key.
    """

    table: str
    state: Literal["load", "follow", "stopped", "unpublished"]
    position: int | None
    history_position: int | None
    version: int | None
    waiting_rows: int | None
    applied_rows: int
    lag_bytes: int | None
    lag_seconds: float | None
    error: str | None
    history_error: str | None
    merges: int = 0
    merge_seconds: float = 0.0
    rejects: int = 0
    load: LoadProgress | None = None
    renamed: str | None = None

    def __str__(self) -> str:
        position = "" if self.position is None else f" at {format_lsn(self.position)}"
        lag = "" if self.lag_bytes is None else f", {self.lag_bytes:,} bytes behind"
        seconds = "" if self.lag_seconds is None else f" and {self.lag_seconds:,.1f} s"
        rejects = counted(self.rejects, "value or change", "values or changes")
        rejects = f", its rejects have {rejects}" if self.rejects else ""
        error = self.error or self.history_error
        load = "" if self.load is None else f", {self.load}"
        state = f"{_STATES[self.state]}{load}{position}{lag}{seconds}{rejects}"
        renamed = "" if self.renamed is None else f" ({self.renamed} on the server)"
        return f"{self.table}{renamed}: {state}{'' if error is None else f': {self._with_remedy(error)}'}"

    def _with_remedy(self, error: str) -> str:
        """An error with its remedy, unless the table is loaded anyway."""
        return error if self.state == "load" or RELOAD in error else f"{error}. {RELOAD} loads it again"


def without_slot(found: list[TableStatus], why: str | None) -> list[TableStatus]:
    """The states if the mirror cannot go on with its slot, so that no table follows or can be loaded.

    Args:
        found: the states otherwise.
        why: why it cannot; None if it can.
    """
    if why is None:
        return found
    going = ("follow", "load")
    return [replace(each, state="stopped", error=why) if each.state in going else each for each in found]


def table_status(
    table: MirroredTable,
    progress: Progress | None,
    common: tuple[int, int | None],
    server: tuple[int, int] | None,
) -> TableStatus:
    """The state of a table.

    Args:
        table: of the mirror.
        progress: of all tables; None before the end of the first load.
        common: the LSN, and the time, up to which the table has all commits if it follows.
        server: its time, and the end of its WAL; None without an answer.
    """
    position = table.position
    through, time_of = common
    if table.follows and progress is not None and position is not None:
        if progress.lsn >= position and progress.time is not None:
            time_of = max(progress.time, time_of or 0)
        position = max(position, progress.lsn)
    lag_bytes = seconds = None
    record = table.record
    if server is not None and position is not None and not record.is_unpublished:
        now, end = server
        table_lsn = max(position, through) if table.follows else position
        lag_bytes = max(0, end - table_lsn)
        if not lag_bytes:
            seconds = 0.0
        elif time_of is not None and table.follows:
            seconds = max(0.0, (now - time_of) / 1e6)
    return TableStatus(
        record.table,
        "unpublished" if record.is_unpublished else record.stage,
        position,
        table.history.position(),
        table.version,
        table.waiting_rows,
        table.applied,
        lag_bytes,
        seconds,
        None if record.is_unpublished else record.error,
        None if record.is_unpublished else record.history_error,
        table.merges,
        table.merge_seconds,
        record.rejects,
        table.loading if table.wants_load else None,
        record.renamed,
    )
