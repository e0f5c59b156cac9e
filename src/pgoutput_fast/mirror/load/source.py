"""Reads the rows of a table for a load: in one go, or in ranges that stay when the load is interrupted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.effect.effect import COMMIT_LSN, UNREPRESENTABLE
from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.merge.keys import key_of
from pgoutput_fast.mirror.errors import LoadStoppedError
from pgoutput_fast.mirror.follow.rejects import UNDECODABLE_ROW
from pgoutput_fast.mirror.follow.tables import MirroredTable, relation_columns
from pgoutput_fast.mirror.load.changed import apply_changes
from pgoutput_fast.mirror.load.keys import conditions
from pgoutput_fast.mirror.load.ranges import LoadedRanges, TableAtRead
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.state.layout import SPILL
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.progress import LoadProgress, ProgressCounter
from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.snapshot.read import SnapshotReader
from pgoutput_fast.snapshot.snapshot import RANGE_BYTES, Snapshot, SnapshotBatches
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.options import TableOptions

__all__ = ["Followed", "TableRows", "TableSource", "is_beside", "is_small", "rows_of"]

_log = logging.getLogger("pgoutput_fast.mirror")

# A kill costs the ranges that are being read: a small part of the table. Smaller ones would take longer to begin than
# to read.
_PART, _LEAST_BYTES = 64, 16 << 20


class Followed(NamedTuple):
    """How far the changes of the stream are in the histories.

    Attributes:
        lsn: of the last commit.
        through: no transaction committed between `lsn` and this LSN.
        stream: number of the slot.
    """

    lsn: int
    through: int
    stream: int


@dataclass(frozen=True)
class TableRows:
    """The rows of a table at one position.

    Attributes:
        begin: the server had the commits up to this LSN, or later ones, when each row was read.
        position: they have all commits up to this LSN, and no later ones.
        schema: their columns.
        rows: in pieces. They can be iterated once.
        rejects: of the rows so far, which the consumer removes.
    """

    begin: int
    position: int
    schema: pa.Schema
    rows: Iterator[pa.Table]
    rejects: list[pa.RecordBatch]


class TableSource:
    """Reads one table.

    Args:
        table: the table.
        snapshot: has it.
        server: of the mirror.
        store: the target.
        settings: of the mirror.
        schema: of the rows.
        keep_going: called from time to time: whether to go on.
        progress: called after each range of pages.
    """

    def __init__(
        self,
        table: MirroredTable,
        snapshot: Snapshot,
        server: ServerView,
        store: Store,
        settings: MirrorSettings,
        schema: pa.Schema,
        keep_going: Callable[[], bool],
        progress: Callable[[LoadProgress], object],
    ) -> None:
        self._table, self._snapshot, self._server, self._settings = table, snapshot, server, settings
        self._store, self._schema = store, schema
        self._keep_going, self._progress = keep_going, progress
        self._name, self._position = table.record.on_server, snapshot.consistent_lsn - 1
        self._relation = snapshot.tables[self._name].relation
        self._key = key_of(self._relation)
        self.ranges = LoadedRanges(store, table.directory)

    def rows(self, followed: Followed | None) -> TableRows:
        """Reads the rows.

        Args:
            followed: how far the history is. None to read all rows in the snapshot.

        Raises:
            LoadStoppedError: if `keep_going` became false. Ranges that were read stay.
            SnapshotError: if the rows cannot be had now; the message says why.
            ValueError: if the server refuses to read them.
        """
        if followed is None or not self.is_in_ranges(followed):
            self.ranges.remove()
            if followed is not None and self._position < followed.lsn:
                raise SnapshotError("its snapshot came too late: the other tables have later changes")
            return self._in_one_go()
        self.read_missing()
        # No transaction commits at an odd LSN: the history has the rows after all changes that they contain.
        through = self._position if followed.lsn <= self._position else followed.lsn + 1
        if self.ranges.are_of_one_snapshot(self._snapshot.consistent_lsn) and through == self._position:
            rows = self._stored(self._position)
            return TableRows(self._position, self._position, self._schema, rows, list(self.ranges.rejects()))
        return self._at(through, followed)

    def _in_one_go(self) -> TableRows:
        batches = self._snapshot.read([self._name], threads=self._settings.threads, progress=self._progress)
        rows = rows_of(batches, self._schema, self._position, self._keep_going)
        return TableRows(self._position, self._position, self._schema, rows, batches.rejects)

    # ---- ranges --------------------------------------------------------------------------------------------------

    def is_in_ranges(self, followed: Followed) -> bool:
        """Whether the table is read in ranges that stay. Prepares them."""
        fingerprint = self._server.fingerprint_in(self._snapshot, self._name)
        if not self._key or fingerprint is None or self._table.record.history_error is not None:
            return False
        on_server = self._snapshot.tables[self._name]
        now = TableAtRead(followed.stream, on_server, fingerprint, self._schema)
        if self.ranges.done:
            if not self.ranges.fit(now) or self._table.record.lost_lsn >= self.ranges.begin:
                _log.warning("%s was altered during its load, which begins again", self._name)
            elif self.ranges.are_whole([each.name for each in self._all_ranges()]):
                return True
            else:
                _log.warning(
                    "%s: its load begins again: files of its ranges are not those that it wrote", self._name
                )
        range_bytes = min(max(on_server.nbytes // _PART, _LEAST_BYTES), RANGE_BYTES)
        if len(self._snapshot.ranges(self._name, range_bytes)) == 1:
            return False  # a kill would cost the only range
        self.ranges.begin_again(now, range_bytes)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether no range is missing."""
        return all(each.name in self.ranges.done for each in self._all_ranges())

    def _all_ranges(self) -> list[ReadRange]:
        return self._snapshot.ranges(self._name, self.ranges.range_bytes)

    def read_missing(self, *, is_later: bool = False) -> None:
        """Reads the ranges that are missing.

        Args:
            is_later: whether the snapshot is released.

        Raises:
            SnapshotError, ValueError: as `rows`.
        """
        ranges = self._all_ranges()
        done, schema = self.ranges.done, self._schema
        resumed = [
            (each, done[each.name].rows, done[each.name].nbytes) for each in ranges if each.name in done
        ]
        missing = [each for each in ranges if each.name not in done]
        if resumed:
            count = f"{len(resumed)} of {len(ranges)}"
            _log.info("%s: %s ranges of pages were read by an earlier load", self._name, count)
        counter = ProgressCounter(ranges, self._progress, resumed)

        def work(reader: SnapshotReader, each: ReadRange) -> None:
            with self.ranges.writing(each, schema) as file:
                read = reader.read(
                    self._snapshot.tables[self._name],
                    each,
                    lambda batch: file.write(to_types(pa.Table.from_batches([batch]), schema)),
                )
            self._table.history.expect_writer()
            self.ranges.add(each, read, self._snapshot.consistent_lsn, counter, is_later=is_later)

        self._snapshot.read_each(missing, work, threads=self._settings.threads)

    def _stored(self, position: int) -> Iterator[pa.Table]:
        for rows in self.ranges.rows():
            if not self._keep_going():
                raise LoadStoppedError
            yield _with_position(rows, position)

    # ---- ranges of several snapshots -----------------------------------------------------------------------------

    def _at(self, through: int, followed: Followed) -> TableRows:
        """The rows of all ranges, brought to one position with the changes of the history."""
        if followed.through < self._snapshot.consistent_lsn:
            raise SnapshotError(
                "its ranges were read at different times, and the changes in between are not there yet"
            )
        rejects = list(self.ranges.rejects())
        columns = relation_columns(self._schema)
        begin = self.ranges.begin - 1
        _log.info(
            "%s: its ranges get the changes between %s and %s",
            self._name,
            format_lsn(begin),
            format_lsn(through),
        )
        place = open_store(self._store.at(f"{self.ranges.place}/table"))
        options = TableOptions(self._settings.table_options.storage)
        table = open_current_table("delta", place, self._name, options)
        try:
            apply_changes(
                table,
                self._stored(begin),
                self._table.history,
                self._key,
                columns,
                (begin, self._position, through),
                lambda keys: self._found(keys, rejects),
                self._settings.reads_apart and self._snapshot.close,
                self._spill_directory,
            )
        except ValueError as problem:
            self.ranges.remove()
            raise SnapshotError(f"its load was interrupted, and begins again: {problem}") from None
        if through > self._position:
            self._expect_unaltered(through)
        schema = _with_types(self._schema, table.schema())
        names = [*columns.names, UNREPRESENTABLE]
        rows = (_as_loaded(each, schema, through) for each in table.scan(names))
        return TableRows(begin, through, schema, rows, rejects)

    @property
    def _spill_directory(self) -> str | os.PathLike[str] | None:
        """Where rows wait in a file, as changes do: by default beside the tables, if they are on this machine."""
        given = self._settings.options.spill_directory
        return self._store.at(SPILL) if given is None and self._store.local else given

    def _found(self, keys: pa.Table, rejects: list[pa.RecordBatch]) -> pa.Table:
        """The rows with some keys in the snapshot."""
        found = [self._schema.empty_table()]
        for condition in conditions(self._relation, keys):
            batches = self._snapshot.read([self._name], where=condition)
            found += rows_of(batches, self._schema, self._position, self._keep_going)
            if any(pc.any(pc.is_null(each["change_type"])).as_py() for each in batches.rejects):
                raise ValueError(UNDECODABLE_ROW)
            rejects += batches.rejects
        return pa.concat_tables(found)

    def _expect_unaltered(self, through: int) -> None:
        """Checks that changes after the snapshot have the columns that the table has in it.

        Raises:
            SnapshotError: if they may have others. The next snapshot then has these columns, too.
        """
        changes = self._table.history.between(self._position, through)
        if not any(rows.num_rows for rows in changes.read_parts(["_commit_lsn", "_seq", "_change_type"])):
            return
        before = self._server.fingerprint_in(self._snapshot, self._name)
        now = self._server.fingerprints().get(self._name)
        if before is None or now is None or replace(now, horizon=before.horizon) != before:
            raise SnapshotError("it was altered after its snapshot")


def is_small(table: MirroredTable, snapshot: Snapshot) -> bool:
    """Whether one session reads a table in one go."""
    on_server = snapshot.tables.get(table.record.on_server)
    return on_server is not None and len(on_server.parts) == 1 and on_server.nbytes <= _LEAST_BYTES


def is_beside(table: MirroredTable, snapshot: Snapshot) -> bool:
    """Whether a table may be loaded while others are: it has commits of its own, and is read before it is written."""
    on_server = snapshot.tables.get(table.record.on_server)
    is_first_read = is_small(table, snapshot) or (on_server is not None and bool(key_of(on_server.relation)))
    return is_first_read and table.current.together() is None


def rows_of(
    batches: SnapshotBatches, schema: pa.Schema, position: int, keep_going: Callable[[], bool]
) -> Iterator[pa.Table]:
    """The rows of a table in plain types, with the position in place of their commits, which are unknown.

    Raises:
        SnapshotError: if the rows are not complete.
    """
    for _, batch in batches:
        if not keep_going():
            raise LoadStoppedError
        yield _with_position(to_types(pa.Table.from_batches([batch]), schema), position)
    for why in batches.lost.values():
        raise SnapshotError(why)


def _with_position(rows: pa.Table, position: int) -> pa.Table:
    at = rows.schema.get_field_index(COMMIT_LSN)
    return rows.set_column(
        at, rows.schema.field(at), pa.repeat(pa.scalar(position, pa.int64()), rows.num_rows)
    )


def _with_types(schema: pa.Schema, stored: pa.Schema | None) -> pa.Schema:
    """The columns of a load, with the types of a table that has the relation's columns."""
    assert stored is not None
    return pa.schema(
        [each if each.name in _METADATA else each.with_type(stored.field(each.name).type) for each in schema]
    )


def _as_loaded(rows: pa.Table, schema: pa.Schema, position: int) -> pa.Table:
    """Rows of a table as a load has them: as inserts with ordinal -1."""
    values = {"_change_type": "insert", "_seq": -1, COMMIT_LSN: position, "_key_only": False}
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.repeat(pa.scalar(values.get(field.name), field.type), rows.num_rows)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


_METADATA = metadata_names("_")
