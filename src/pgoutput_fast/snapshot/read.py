"""A reader of a snapshot, with a pinned session of its own. It reads one range of a table at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa

from pgoutput_fast._core.copy.table_rows import CopyRows
from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.postgres.copy_stream import CopyLink
from pgoutput_fast.postgres.heaps import hold_schema, is_standby, is_superuser, lock_heap, refuse_views
from pgoutput_fast.postgres.locks import holders
from pgoutput_fast.postgres.published import row_filters
from pgoutput_fast.postgres.recoding import CopyRecoder
from pgoutput_fast.postgres.refusals import converted_here, find_unsendable
from pgoutput_fast.postgres.session import codec_of, connect, read_position
from pgoutput_fast.postgres.tables import SnapshotTable, text_columns
from pgoutput_fast.schema.flat import flatten
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.storage.temporary_rows import TemporaryRows

__all__ = [
    "RangeRead",
    "SeenTransactions",
    "SnapshotReader",
    "TableLockedError",
    "TableLostError",
    "copy_query",
    "in_snapshot",
]

_log = logging.getLogger("pgoutput_fast.capture")

# Bytes to read from the connection before decoding them. Timeouts for the first row and for further rows.
_MOST_BYTES = 1 << 20
_WAIT_SECONDS, _FILL_SECONDS = 0.2, 0.02
# Between two looks whether transactions are seen by all.
_SEEN_SECONDS = 0.05
# A wait for a lock is logged after this time.
_LOCK_SECONDS = 10.0


# The server does not find the table, or (the third one) its schema cannot be held.
_RENAMED = (
    psycopg2.errors.UndefinedTable,
    psycopg2.errors.InvalidSchemaName,
    psycopg2.errors.SerializationFailure,
)
# A view, or a relation that cannot be locked, has taken the table's name.
_REPLACED = (psycopg2.errors.ObjectNotInPrerequisiteState, psycopg2.errors.WrongObjectType)


class TableLostError(SnapshotError):
    """A table was dropped, altered, rewritten or truncated after the snapshot. The other tables can still be read.

    Attributes:
        table: the table's qualified, quoted name.
    """

    def __init__(self, table: str, what: str) -> None:
        super().__init__(
            f"{table} {what} after the snapshot began, so the snapshot can no longer read its rows. If the table is "
            "still published, load it with a snapshot of its own"
        )
        self.table = table
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return (TableLostError, (self.table, self._what))


class TableLockedError(TableLostError):
    """The wait for a table's lock timed out. The other tables can still be read.

    Attributes:
        table: the table's qualified, quoted name.
    """

    def __init__(self, table: str, what: str) -> None:
        SnapshotError.__init__(self, f"{table} cannot be read now: {what}")
        self.table = table
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return (TableLockedError, (self.table, self._what))


@dataclass(frozen=True)
class RangeRead:
    """The result of reading a range.

    Attributes:
        rows: rows read, including those with rejects.
        nbytes: bytes of the COPY.
        rejects: values without an Arrow form, with REJECTS_SCHEMA; `seq` is -1 in all of them.
    """

    rows: int
    nbytes: int
    rejects: pa.RecordBatch


@dataclass(frozen=True)
class SeenTransactions:
    """The transactions that a snapshot sees: those before `end`, without `running`.

    Attributes:
        end: the first transaction that had not begun.
        running: transactions before it that had not ended. It may have some that had failed. A standby tells none.
        lsn: all of them are in the WAL before this LSN.
    """

    end: int
    running: frozenset[int]
    lsn: int = 0

    @classmethod
    def of(cls, cursor: Any, lsn: int = 0) -> SeenTransactions:
        """Those of the current snapshot of a session."""
        cursor.execute("SELECT pg_catalog.txid_current_snapshot()::pg_catalog.text")
        _, end, running = cursor.fetchone()[0].split(":")
        return cls(int(end), frozenset(map(int, filter(None, running.split(",")))), lsn)

    def are_seen_by(self, later: SeenTransactions) -> bool:
        """Whether a later snapshot sees all of them.

        A transaction may be in the WAL and wait for a standby: then the slot sends it, and other sessions do not see it
        yet. On the standby itself, sessions see a transaction as soon as its WAL is replayed.

        >>> seen = SeenTransactions(20, frozenset({15}))
        >>> seen.are_seen_by(SeenTransactions(25, frozenset({15, 22})))
        True
        >>> seen.are_seen_by(SeenTransactions(25, frozenset({16})))
        False
        """
        return {each for each in later.running if each < self.end} <= self.running


@contextmanager
def in_later_snapshot(
    cursor: Any, seen: SeenTransactions, keep_waiting: Callable[[], bool], *, may_write: bool = False
) -> Iterator[None]:
    """Runs the block in a transaction of its own, which sees at least some transactions.

    Raises:
        QueryCanceled: if `keep_waiting` became false.
    """
    while True:
        # Before the transaction begins. The connection may lead to another standby, which is behind.
        is_replayed = read_position(cursor) >= seen.lsn
        cursor.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ {'WRITE' if may_write else 'ONLY'}")
        if is_replayed and seen.are_seen_by(SeenTransactions.of(cursor)):
            break
        cursor.execute("ROLLBACK")
        if not keep_waiting():
            raise _cancelled()
        time.sleep(_SEEN_SECONDS)
    yield
    cursor.execute("COMMIT")


@contextmanager
def in_snapshot(cursor: Any, snapshot: str, *, may_write: bool = False) -> Iterator[None]:
    """Runs the block in a transaction that sees the snapshot, read-only unless it `may_write`.

    Raises:
        SnapshotError: if the snapshot is no longer held.
    """
    cursor.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ {'WRITE' if may_write else 'ONLY'}")
    try:
        cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
    except (
        psycopg2.errors.UndefinedObject,
        psycopg2.errors.InvalidParameterValue,
        # The snapshot's file exists, but the exporting process is about to end.
        psycopg2.errors.ObjectNotInPrerequisiteState,
    ):
        cursor.execute("ROLLBACK")
        raise ended_error(snapshot) from None
    yield
    # Not in a finally block: after an error the session may be in a COPY, and is closed.
    cursor.execute("COMMIT")


def ended_error(snapshot: str) -> SnapshotError:
    """Returns the error for a snapshot that is no longer held."""
    return SnapshotError(
        f"the snapshot {snapshot} is gone: it ended with the connection that exported it. The rows that were read "
        "are incomplete. Drop the slot and start over"
    )


def copy_query(
    table: SnapshotTable,
    each: ReadRange,
    as_text: frozenset[str],
    selected: Sequence[str] | None,
    row_filter: str | None = None,
    search_path: str | None = None,
) -> str:
    """Returns the COPY of a range: all columns in order, unselected ones as nulls.

    `row_filter` is the SQL of the table's filter. If `search_path` (an SQL literal) is given, the query sets it before
    it reads a row, because the output of values depends on it.
    """
    columns = []
    for column in table.relation.columns:
        name = quote_identifier(column.name)
        if selected is not None and column.name not in selected:
            columns.append("NULL")
        elif column.name in as_text:
            # Uses the type's output function, unlike a cast to text. A composite of nulls is not null.
            columns.append(
                f"CASE WHEN pg_catalog.num_nulls({name}) OPERATOR(pg_catalog.=) 0 "
                f"THEN pg_catalog.format('%s', {name}) END"
            )
        else:
            columns.append(name)
    # The condition refers to no column, so the server evaluates it once, before it reads rows.
    sets_path = f"(SELECT pg_catalog.set_config('search_path', {search_path}, true)) IS NOT NULL"
    before = sets_path if search_path is not None else None
    conditions = [f"({sql})" for sql in (before, each.condition(), row_filter) if sql is not None]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"COPY (SELECT {', '.join(columns)} FROM ONLY {each.part.name}{where}) TO STDOUT (FORMAT binary)"


class SnapshotReader:
    """A session that reads ranges of a snapshot.

    Args:
        dsn: of the database.
        snapshot: the name of the exported snapshot. Or the transactions that a read must see: then each range is read
            in a transaction of its own, and may have later commits, too.
        catalog: types that the server described.
        options: how to decode.
        lock_seconds: how long to wait for a table that another session has locked; None to wait indefinitely.

    Raises:
        psycopg2.Error: if the server cannot be reached.
    """

    def __init__(
        self,
        dsn: str,
        snapshot: str | SeenTransactions,
        catalog: Catalog,
        options: Options,
        lock_seconds: float | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._lock_seconds = lock_seconds
        self._catalog = catalog
        self._options = options
        self._cancelled = False
        self._logged: set[str] = set()
        self._connection = connect(dsn, values=True)
        self._codec = codec_of(self._connection)
        with self._connection.cursor() as cursor:
            # An error instead of rows silently hidden by row security policies.
            cursor.execute("SET row_security = off")
            self._refuses_views = refuse_views(cursor)
            cursor.execute(f"SET lock_timeout = {int((lock_seconds or _LOCK_SECONDS) * 1000)}")

    def close(self) -> None:
        """Ends the session, even during a read."""
        self._connection.close()

    def cancel(self) -> None:
        """Cancels the current read, from another thread."""
        self._cancelled = True
        self._connection.cancel()

    def read(
        self, table: SnapshotTable, each: ReadRange, on_batch: Callable[[pa.RecordBatch], object]
    ) -> RangeRead:
        """Reads a range; `on_batch` receives its record batches, with the schema of the relation's changes.

        `_change_type` is insert, `_seq` is -1, `_commit_lsn` is the snapshot's consistent point; other metadata are
        null.

        Raises:
            TableLostError: if the table was dropped, altered, rewritten or truncated after the snapshot.
            TableLockedError: if another session keeps it locked for `lock_seconds`.
            SnapshotError: if the snapshot is no longer held.
            ValueError: if a value has a character without a UTF-8 form, in an encoding that is not in `CODECS`.
            DecodeError: for an invalid value, and for one without an Arrow form with `unrepresentable="raise"`.
            psycopg2.Error: if the server refuses, or the connection is lost.
        """
        is_logged = False
        while True:
            try:
                return self._read(table, each, on_batch)
            except psycopg2.errors.LockNotAvailable:
                what = self._holders(each)
            if self._lock_seconds is not None:
                raise TableLockedError(table.name, what)
            if not is_logged:
                _log.warning("the load waits for %s: %s", each.part.name, what)
                is_logged = True

    def _holders(self, each: ReadRange) -> str:
        with self._connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
            return holders(cursor, each.part.oid)

    def _read(
        self, table: SnapshotTable, each: ReadRange, on_batch: Callable[[pa.RecordBatch], object]
    ) -> RangeRead:
        """Reads a range. If the server cannot send a text as UTF-8, reads it again and converts the texts here."""
        if self._codec is None:
            return self._read_once(table, each, on_batch)
        buffered = _BufferedBatches()
        try:
            found = self._read_once(table, each, buffered.add)
        except psycopg2.errors.UntranslatableCharacter:
            with self._connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
            if table.name not in self._logged:
                _log.warning("%s", converted_here(f"rows of {table.name}"))
                self._logged.add(table.name)
            return self._read_once(table, each, on_batch, self._codec)
        for batch in buffered:
            on_batch(batch)
        return found

    def _read_once(
        self,
        table: SnapshotTable,
        each: ReadRange,
        on_batch: Callable[[pa.RecordBatch], object],
        codec: str | None = None,
    ) -> RangeRead:
        """Reads a range.

        Args:
            table, each, on_batch: as for `read`.
            codec: for the database's encoding, if the server sends all values as texts in it. None for UTF-8.
        """
        relation = table.relation
        major = self._connection.server_version // 10000
        as_text = (
            text_columns(table, self._catalog, self._options, major)
            if codec is None
            else frozenset(column.name for column in relation.columns)
        )

        def give(batch: pa.RecordBatch) -> None:
            on_batch(flatten(batch) if self._options.plain else batch)

        rows = CopyRows(
            relation, self._options, self._catalog.types, table.consistent_lsn, as_text, on_batch=give
        )
        selected = self._options.columns_of(relation)
        holds = self._holds_schema(table, each)
        with self._connection.cursor() as cursor, self._in_snapshot(cursor, may_write=holds):
            try:
                if holds:
                    hold_schema(cursor, each.part.name)
                # Under the lock, a file that is unchanged now stays so during the read.
                is_same = lock_heap(cursor, each.part.name) == (each.part.oid, each.part.filenode)
                if is_same:
                    # Under the table's lock, its filter can be read and cannot change.
                    filters = row_filters(cursor, table.filters).values()
                    row_filter = " OR ".join(f"({sql})" for sql in filters) or None
                    path = None if row_filter is None else _without_path(cursor)
                    names = None if selected is None else list(selected)
                    if self._lock_seconds is None:
                        # No timeout during the read: an index may be locked after rows were delivered, and none may be
                        # delivered twice.
                        cursor.execute("SET LOCAL lock_timeout = 0")
                    query = copy_query(table, each, as_text, names, row_filter, path)
                    try:
                        if codec is not None:
                            encoding = self._connection.get_parameter_status("server_encoding")
                            cursor.execute(f"SET LOCAL client_encoding = '{encoding}'")
                        self._copy(query, rows, codec)
                    except psycopg2.Error:
                        raise
                    except BaseException:
                        # A server without rows to send does not detect that the client is gone.
                        with suppress(psycopg2.Error):
                            self.cancel()
                        raise
            except _RENAMED:
                cursor.execute("ROLLBACK")
                raise TableLostError(table.name, _changed_text("dropped or renamed", table, each)) from None
            except psycopg2.errors.UntranslatableCharacter:
                if self._codec is not None and codec is None:
                    raise
                # The server's error contains a part of the value.
                raise ValueError(
                    f"the server cannot send the rows of {table.name}: one has a character without a form in UTF-8. "
                    f"{find_unsendable(each.part.name)}. Fix them, or do not publish the table"
                ) from None
            except _REPLACED:
                cursor.execute("ROLLBACK")
                raise TableLostError(table.name, _changed_text("replaced", table, each)) from None
            except (psycopg2.errors.UndefinedColumn, psycopg2.errors.DatatypeMismatch):
                cursor.execute("ROLLBACK")
                raise TableLostError(table.name, _changed_text("altered", table, each)) from None
            if not is_same:
                cursor.execute("ROLLBACK")
                raise TableLostError(
                    table.name, _changed_text("rewritten, truncated or replaced", table, each)
                )
            rows.finish()
        for batch in rows.take_batches():
            give(batch)
        return RangeRead(rows.row_count, rows.decoded_bytes, rows.take_rejects())

    def _in_snapshot(self, cursor: Any, *, may_write: bool) -> AbstractContextManager[None]:
        may_write = may_write and not is_standby(self._connection)
        if isinstance(self._snapshot, str):
            return in_snapshot(cursor, self._snapshot, may_write=may_write)
        return in_later_snapshot(cursor, self._snapshot, lambda: not self._cancelled, may_write=may_write)

    def _holds_schema(self, table: SnapshotTable, each: ReadRange) -> bool:
        """Whether the schema must be held, so that a read calls no function of another user.

        A server that refuses views still reads another table of this name. A condition on its columns would call the
        casts of their types.
        """
        has_condition = bool(table.filters) or each.where is not None
        return is_superuser(self._connection) and (has_condition or not self._refuses_views)

    def _copy(self, query: str, rows: CopyRows, codec: str | None) -> None:
        link = CopyLink(self._connection)
        recoder = CopyRecoder(codec) if codec is not None else None
        if not link.begin(query.encode(codec or "utf-8"), lambda: not self._cancelled):
            raise _cancelled()
        while (messages := link.take(_MOST_BYTES, _WAIT_SECONDS, _FILL_SECONDS)) is not None:
            if self._cancelled:
                raise _cancelled()
            if len(messages) and recoder is not None:
                rows.write(recoder.recode(messages))
            elif len(messages):
                # Messages are consecutive rows: their bytes are the stream.
                rows.write(messages.buffers()[2])


class _BufferedBatches:
    """The batches of a range in a temporary file, until it is certain that the range need not be read again."""

    def __init__(self) -> None:
        self._file: TemporaryRows | None = None
        self._offsets: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._file = self._file or TemporaryRows()
        self._offsets.append(self._file.write(batch.schema, [batch]))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for offset in self._offsets:
            assert self._file is not None
            yield from self._file.read(offset)


def _cancelled() -> psycopg2.Error:
    return psycopg2.errors.QueryCanceled("somebody cancelled the read of the snapshot")


def _without_path(cursor: Any) -> str:
    """Reduces the transaction's search path to pg_catalog. Returns the previous path, as an SQL literal.

    A row filter is text from the server, with operators without schemas. It uses only built-in objects. This path
    prevents calls of objects planted in other schemas after the filter was read.
    """
    cursor.execute("SELECT pg_catalog.quote_literal(pg_catalog.current_setting('search_path'))")
    (path,) = cursor.fetchone()
    cursor.execute("SET LOCAL search_path = pg_catalog")
    return str(path)


def _changed_text(what: str, table: SnapshotTable, each: ReadRange) -> str:
    return (
        f"was {what}" if each.part.oid == table.relation.oid else f"had its partition {each.part.name} {what}"
    )
