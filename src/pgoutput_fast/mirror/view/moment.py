"""A mirrored table at one moment: a version of its current table, and later changes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_qualified_name
from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE
from pgoutput_fast.merge.effect.renames import Rename, absent, all_names
from pgoutput_fast.mirror.state.layout import HISTORY
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.points import Point, Points, lsn_of
from pgoutput_fast.mirror.state.table_record import TableRecord
from pgoutput_fast.mirror.view.changes import Changes, read_changes
from pgoutput_fast.mirror.view.times import position_at
from pgoutput_fast.protocol.lsn import Lsn, format_lsn
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.columns import merged
from pgoutput_fast.tables.directories import directory_of
from pgoutput_fast.tables.errors import LOAD_AGAIN, RELOAD, MirrorError
from pgoutput_fast.tables.formats import open_current, open_history
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import OpenVersion

__all__ = ["Moment", "Position", "open_moment"]

# A position, as passed by a caller.
Position = Lsn | datetime | Literal["latest"]

# Attempts to read the state of a table, if the mirror loads the table meanwhile.
_TRIES = 5


@dataclass(frozen=True)
class Moment:
    """A table of a mirror at one position.

    Attributes:
        table: qualified name, quoted as in SQL.
        position: the table has all commits up to this LSN, and no later ones.
        base: a version of the current table.
        changes: the changes of the history after it, up to the position.
        record: the state of the table in the mirror.
    """

    table: str
    position: int
    base: OpenVersion
    changes: Changes
    record: TableRecord

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table at this moment."""
        if not self.changes.files:
            return self.base.schema
        base = self._base
        known = {name for lsn in self._begins() for name in self.record.shape_at(lsn)[1]}
        known -= {
            name
            for name, each in self.record.columns.items()
            if each.since is not None and each.since[0] > self.position
        }
        lacking = absent(self.renames, self.position + 1, 0) if self.renames else set()
        new = [name for name in self._taken(known) if name not in base.names and name not in lacking]
        return merged(base, pa.schema([self.changes.schema.field(name) for name in new]))

    @property
    def renames(self) -> list[Rename]:
        """The columns that the changes rename in place."""
        return self.record.renames_between(self.base.position, self.position)

    @property
    def _base(self) -> pa.Schema:
        """The columns of the base under their names at this moment."""
        fields = list(self.base.schema)
        for each in self.renames if self.changes.files else ():
            if each.former:
                fields = [field for field in fields if field.name != each.name]
                fields = [
                    field.with_name(each.name) if field.name == each.former else field for field in fields
                ]
        return pa.schema(fields)

    @property
    def changed(self) -> list[str]:
        """The columns for which the changes have values: those of the table, and of renamed ones under former names."""
        return self._taken({*self.schema.names, *all_names(self.renames)})

    def with_former(self, names: Iterable[str]) -> set[str]:
        """Columns, and those that had their values, or their names, before."""
        found, left = set[str](), [*names]
        while left:
            name = left.pop()
            found.add(name)
            known = self.record.columns.get(name)
            former = {known.former} if known is not None and known.former is not None else set()
            former |= all_names(each for each in self.renames if name in (each.former, each.name))
            left += former - found
        return found

    def columns(self, key: Sequence[str], lsn: int) -> list[str]:
        """The columns of the changes under a key.

        A history also has former columns. Rows without a key are compared by the columns of the relation at their time:
        a dropped column is null in new rows, but not in old ones.

        Args:
            key: the key; empty if only whole rows identify rows.
            lsn: at which one of the changes commits.
        """
        if key:
            return self.changed
        return self._taken(self.record.shape_at(lsn)[1])

    def _taken(self, names: Collection[str]) -> list[str]:
        hidden = (COMMIT_LSN, UNREPRESENTABLE)
        return [name for name in self.changes.schema.names if name in names and name not in hidden]

    @property
    def keys(self) -> set[tuple[str, ...]]:
        """The keys of the changes. An empty one: whole rows identify rows.

        Before the first known key there are only rows of loads, if any.
        """
        found = (self.record.key_at(lsn) for lsn in self._begins())
        return {key for key in found if key is not None} or {()}

    def _begins(self) -> list[int]:
        """The LSNs at which the changes begin, get another key or lose columns."""
        begin, through = self.changes.after + 1, self.changes.through
        known = {lsn for lsn, _ in (*self.record.keys, *self.record.shapes)}
        return sorted({begin, *(lsn for lsn in known if begin < lsn <= through)})

    def by_key(self, rows: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
        """Yields (key, changes under this key), in order. Without a key, the changes have the same columns.

        Args:
            rows: changes in order, with `_commit_lsn`.

        Raises:
            MirrorError: if the key is unknown.
        """
        commits = rows[COMMIT_LSN].to_numpy()
        cuts = {lsn for lsn, _ in self.record.keys} | {
            lsn for lsn, _ in self.record.shapes if not self.record.key_at(lsn)
        }
        starts = [0, *(int(np.searchsorted(commits, lsn)) for lsn in sorted(cuts)), rows.num_rows]
        for begin, end in pairwise(starts):
            if begin < end:
                yield self._key_at(rows, begin, end), rows.slice(begin, end - begin)

    def _key_at(self, rows: pa.Table, begin: int, end: int) -> tuple[str, ...]:
        key = self.record.key_at(int(rows[COMMIT_LSN][begin].as_py()))
        if key is not None:
            return key
        # Before the first change with a known key, only a load writes into a history. Its rows are new.
        if rows["_seq"].slice(begin, end - begin).to_numpy().max() >= 0:
            raise MirrorError(
                f"{self.table}: its history has changes from before this version of pgoutput_fast, which does not know "
                f"their key: run the mirror until it has applied them, or {LOAD_AGAIN}"
            )
        return ()


def open_moment(
    target: str | os.PathLike[str],
    table: str,
    position: Position,
    options: TableOptions,
) -> Moment:
    """Opens a table at a position. The mirror may run meanwhile.

    Raises:
        KeyError: if the table is not mirrored.
        LookupError: if the position cannot be read; the message says which can.
        MirrorError: if the table is stopped, or must be loaded.
        ValueError, TypeError: if `position` is not a position.
    """
    store = open_store(target)
    state = MirrorState(store)
    parts = parse_qualified_name(table)
    name = table if parts is None else quote_qualified_name(*parts)
    beginning = state.begun(options)
    options = beginning.table_options(options)
    directory = directory_of(name, options.naming)
    for _ in range(_TRIES):
        record = state.table(directory)
        if record is None:
            known = ", ".join(sorted(each.table for each in state.tables().values()))
            raise KeyError(f"{table} is not mirrored; mirrored: {known or 'no table'}")
        _expect_good(record)
        reader = _Reader(
            store,
            beginning.format,
            directory,
            record,
            state.history_lsn() or -1,
            options,
        )
        moment = reader.moment(position)
        # The mirror records a change of this state before the history has the changes. So if it is unchanged, version
        # and changes belong together.
        if state.table(directory) == record:
            return moment
    raise MirrorError(f"{table} is being loaded: try again later")


def _expect_good(record: TableRecord) -> None:
    """
    Raises:
        MirrorError: if history and current table do not give the table.
    """
    if record.stage == "load":
        raise MirrorError(
            f"{record.table} must be loaded first, which the mirror does when it runs: {record.error}"
        )
    if record.is_unpublished:
        raise MirrorError(
            f"{record.table} is not published any more, so its current rows are unknown: read its current table, which "
            "stays as it was, or publish it again"
        )
    if record.stage == "stopped":
        raise MirrorError(f"{record.table} is stopped: {record.error}. {RELOAD} loads it again")
    if record.history_error is not None:
        raise MirrorError(
            f"the history of {record.table} does not go on: {record.history_error}. Read its current table, or "
            f"{LOAD_AGAIN}"
        )


@dataclass
class _Reader:
    """Reads one table from the files of a mirror."""

    store: Store
    format: str
    directory: str
    record: TableRecord
    history_lsn: int
    options: TableOptions

    def moment(self, position: Position) -> Moment:
        table = self.record.table
        current = open_current(self.format, self.store, table, self.options)
        base = current.open()
        newest = base.position
        if position == "latest":
            lsn = max(self.history_lsn, base.position)
        else:
            end = max(self.history_lsn, base.position)
            lsn = self._lsn(position, end)
            self._expect_known(lsn, end)
            if base.position > lsn:
                point = self._point(lsn)
                try:
                    base = current.open(point.versions[table])
                except ValueError as problem:
                    raise LookupError(f"{problem}. Read 'latest'") from None
                # Another program than the mirror may move current tables. It writes no history.
                if max(self.history_lsn, point.position) < lsn:
                    raise LookupError(
                        f"the history of {table} goes up to {format_lsn(max(self.history_lsn, 0))}, and not to "
                        f"{format_lsn(lsn)}: run the mirror, or use 'latest', {format_lsn(newest)} or {point.lsn}"
                    )
        changes = self._changes(base.position, lsn)
        return Moment(table, lsn, base, changes.as_in(base.schema), self.record)

    def _lsn(self, position: Lsn | datetime, end: int) -> int:
        if isinstance(position, datetime):
            return position_at(
                position,
                self.record,
                Points(self.store).read(),
                lambda after: self._changes(after, end),
                str(self.store),
            )
        return lsn_of(position)

    def _changes(self, after: int, through: int) -> Changes:
        history = open_history(self.store, f"{HISTORY}/{self.directory}", self.options)
        return read_changes(history, after, through)

    def _expect_known(self, lsn: int, end: int) -> None:
        if lsn > end:
            raise LookupError(
                f"{self.store} goes up to {format_lsn(end)}, and not to {format_lsn(lsn)}: run the mirror, or use "
                "'latest'"
            )
        for begin, end, _ in self.record.gaps:
            if begin < lsn < end:
                raise LookupError(
                    f"{self.record.table} was loaded or repaired at {format_lsn(end)}, and its rows between "
                    f"{format_lsn(max(begin, 0))} and then are unknown: read it at {format_lsn(end)} or later (at=, or "
                    f"--at {format_lsn(end)})"
                )

    def _point(self, lsn: int) -> Point:
        """The newest point with the table that is not later."""
        known = Points(self.store).read()
        fitting = [each for each in known if each.position <= lsn and self.record.table in each.versions]
        if not fitting:
            oldest = next((each.lsn for each in known if self.record.table in each.versions), None)
            raise LookupError(
                f"{self.store} has no point of {self.record.table} as old as {format_lsn(lsn)}"
                + ("" if oldest is None else f": the oldest is {oldest}")
            )
        return fitting[-1]
