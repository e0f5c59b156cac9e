"""The initial load: the contents of the published tables at the point where a slot begins."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from pgoutput_fast._core.copy.table_rows import CopyRows
from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import escaped, html_table, some_of
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_identifier, quote_qualified_name
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.postgres.money import expect_cents
from pgoutput_fast.postgres.passwords import Dsn
from pgoutput_fast.postgres.session import describe_database, session
from pgoutput_fast.postgres.tables import describe_tables
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.schema.flat import flat_schema
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.export import export_snapshot
from pgoutput_fast.snapshot.files import TableDirectory, TableLoaded, loading
from pgoutput_fast.snapshot.load import Work, run_readers, streamed
from pgoutput_fast.snapshot.progress import LoadProgress, ProgressCounter
from pgoutput_fast.snapshot.ranges import ReadRange, ranges_of
from pgoutput_fast.snapshot.read import (
    RangeRead,
    SeenTransactions,
    SnapshotReader,
    TableLostError,
    ended_error,
    in_snapshot,
)
from pgoutput_fast.storage.fsync import check_file_mode, directory_mode, make_directory

__all__ = ["Loaded", "Snapshot", "SnapshotBatches"]

RANGE_BYTES = 1 << 26
# Tables shown in a notebook.
_SHOWN = 50


@dataclass(frozen=True)
class Loaded:
    """The result of `Snapshot.load_to`.

    Attributes:
        tables: the completely loaded tables, by qualified name.
        lost: the tables that could not be read as of the snapshot, and why.
    """

    tables: dict[str, TableLoaded]
    lost: dict[str, str]


class SnapshotBatches:
    """An iterator of (table's qualified name, record batch), in any order.

    Attributes:
        lost: the tables that could not be read as of the snapshot, and why; their batches are incomplete.
        rejects: values without an Arrow form, as record batches with REJECTS_SCHEMA.
    """

    def __init__(self) -> None:
        self._lost: dict[str, TableLostError] = {}
        self.rejects: list[pa.RecordBatch] = []
        self._batches: Iterator[tuple[str, pa.RecordBatch]] = iter(())

    @property
    def lost(self) -> dict[str, str]:
        return {name: str(problem) for name, problem in self._lost.items()}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return self._batches

    def __next__(self) -> tuple[str, pa.RecordBatch]:
        return next(self._batches)


class Snapshot:
    """The published tables at one moment, and a slot that begins there.

    The snapshot lives until you close it: use it in a `with` block.

    Args:
        dsn: of the database, with a user who may create slots and read the tables.
        publications: names of the publications, without SQL quotes.
        slot: name of the permanent slot to create. It outlives the snapshot, so that `Capture` continues from it. None
            for a snapshot alone, for instance of tables added while another slot streams. That slot may also send
            changes that committed before `consistent_lsn`: skip them, because the snapshot contains them.
        tables: only these tables, by qualified name; None for all.
        options: how to decode, as for changes.
        two_phase, failover: of the slot, as for `create_slot`.
        user_types: whether to read types that are not built in from the server, as `Catalog.enriched` does. False
            decodes as with the stream alone.
        range_bytes: approximate size of the ranges in which tables are read.
        wanted: called while the server waits for open transactions, and while no data of a table arrive; returns
            whether to keep waiting. None to wait indefinitely.
        lock_seconds: how long a read waits for a table that another session has locked; then the table is lost. None to
            wait indefinitely, which is logged.

    Attributes:
        name: the name for `SET TRANSACTION SNAPSHOT`.
        slot: the slot's name.
        consistent_lsn: the snapshot has all commits before this LSN; the slot sends all commits from this LSN on.
        tables: the tables to read, by qualified name.
        catalog: the catalog of these tables; with it, their changes are decoded into the same schemas.

    Raises (and then leaves no slot behind):
        SnapshotError: if a slot with this name exists already, or if `wanted` became false.
        ValueError: for invalid names, and for features that the server's version lacks.
        KeyError: for a table that is not published.
        psycopg2.Error: if the server refuses; `check` says what the server lacks.
    """

    def __init__(
        self,
        dsn: str,
        publications: Sequence[str],
        slot: str | None = None,
        *,
        tables: Collection[str] | None = None,
        options: Options | None = None,
        two_phase: bool = False,
        failover: bool = False,
        user_types: bool = True,
        range_bytes: int = RANGE_BYTES,
        wanted: Callable[[], bool] | None = None,
        lock_seconds: float | None = None,
    ) -> None:
        expect_list("publications", publications)
        expect_list("tables", tables)
        if range_bytes < 1:
            raise ValueError("range_bytes must be a positive number of bytes")
        if lock_seconds is not None and not lock_seconds > 0:
            raise ValueError("lock_seconds must be positive, or None for no limit")
        self._dsn = dsn
        self._keep_waiting, self._lock_seconds = wanted, lock_seconds
        self._reads_each = threading.Lock()
        self._publications = tuple(publications)
        self.options = options if options is not None else Options()
        self._seen: SeenTransactions | None = None
        self._holder = export_snapshot(dsn, slot, two_phase=two_phase, failover=failover, keep_waiting=wanted)
        try:
            self.export = self._holder.export
            with session(dsn) as cursor, in_snapshot(cursor, self.export.name):
                found, self.catalog = describe_tables(
                    cursor,
                    publications,
                    self.export.server.major,
                    self.export.consistent_lsn,
                    user_types=user_types,
                )
                cursor.execute("SHOW block_size")
                block_size = int(cursor.fetchone()[0])
            self.tables = {table.name: table for table in found if self.options.selects(table.relation)}
            if tables is not None:
                self.tables = {name: self.tables[name] for name in map(self._known, tables)}
                chosen = [table.relation for table in self.tables.values()]
                self.catalog = Catalog(chosen, self.catalog.types)
            self._block_size = block_size
            self._ranges = {name: self.ranges(name, range_bytes) for name in self.tables}
        except BaseException:
            self._holder.drop()
            raise

    def _known(self, table: str) -> str:
        parts = parse_qualified_name(table)
        name = quote_qualified_name(*parts) if parts is not None else table
        if name not in self.tables:
            raise KeyError(
                f"{table} is not published here; published: {', '.join(sorted(self.tables)) or 'no table'}"
            )
        return name

    @property
    def name(self) -> str:
        return self.export.name

    @property
    def slot(self) -> str:
        return self.export.slot

    @property
    def consistent_lsn(self) -> int:
        return self.export.consistent_lsn

    def __repr__(self) -> str:
        return f"<Snapshot: {self._description()}; {some_of([escaped(name) for name in self.tables])}>"

    def _repr_html_(self) -> str:
        rows = [
            (name, len(table.relation.columns), table.nbytes)
            for name, table in islice(self.tables.items(), _SHOWN)
        ]
        left_out = len(self.tables) - len(rows)
        return html_table(f"Snapshot: {self._description()}", ["table", "columns", "bytes"], rows, left_out)

    def _description(self) -> str:
        """A short description of the snapshot, without secrets."""
        state = "closed" if self._holder.closed else "open"
        return (
            f"{state}, {describe_database(self._dsn)} at LSN {format_lsn(self.consistent_lsn)}, "
            f"slot {escaped(self.slot)}, {len(self.tables):,} tables"
        )

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the snapshot, which can then no longer be read. A permanent slot stays and retains WAL."""
        self._holder.close()

    def release(self) -> None:
        """Closes the snapshot. `read_each` then reads each range in a transaction of its own.

        The rows have all commits before `consistent_lsn`, and may have later ones.

        Raises:
            SnapshotError: if the snapshot is gone.
        """
        with session(self._dsn) as cursor, in_snapshot(cursor, self.name):
            self._seen = SeenTransactions.of(cursor, self.consistent_lsn)
        self.close()

    def drop(self) -> None:
        """Closes the snapshot and drops a permanent slot, so that the slot of a failed load retains no WAL.

        If the slot cannot be dropped, this is logged.
        """
        self._holder.drop()

    def ranges(self, table: str, range_bytes: int | None = None) -> list[ReadRange]:
        """Returns the ranges of a table, for readers in other processes.

        Args:
            table: its qualified name.
            range_bytes: approximate size of the ranges; None for that of the snapshot.

        Raises:
            KeyError: for a table that is not in this snapshot.
        """
        if range_bytes is None:
            return list(self._ranges[self._known(table)])
        found = self.tables[self._known(table)]
        return ranges_of(found, self.export.server.major, self._block_size, range_bytes)

    def schema(self, table: str) -> pa.Schema:
        """Returns the schema of a table's record batches, which is that of its changes.

        Raises:
            KeyError: for a table that is not in this snapshot.
            ValueError: if a column has the name of a metadata column.
        """
        relation = self.tables[self._known(table)].relation
        schema: pa.Schema = CopyRows(relation, self.options, self.catalog.types, 0).schema
        return flat_schema(schema) if self.options.plain else schema

    def spark_options(self) -> dict[str, str]:
        """Returns options for `spark.read.format("pgoutput")`.

        Add `table`: executors then read this snapshot while it is open.

        The options contain the connection string, including its password if there is one.

        Raises:
            ValueError: for a `Dsn`, whose password executors cannot ask for.
        """
        if isinstance(self._dsn, Dsn):
            raise ValueError(
                "Spark's executors cannot call the function of a Dsn for its password: take the snapshot with a "
                "connection string that names a service or a password file"
            )
        return {
            "mode": "snapshot",
            "dsn": self._dsn,
            "publication": ",".join(map(quote_identifier, self._publications)),
            "snapshot": self.name,
            "consistent_lsn": str(self.consistent_lsn),
        }

    def _connect(self) -> SnapshotReader:
        if self._seen is not None:
            return SnapshotReader(self._dsn, self._seen, self.catalog, self.options, self._lock_seconds)
        if self._holder.closed:  # the server may not have detected it yet
            raise ended_error(self.name)
        return SnapshotReader(self._dsn, self.export.name, self.catalog, self.options, self._lock_seconds)

    def _all_ranges(self, tables: Collection[str] | None = None, where: str | None = None) -> list[ReadRange]:
        # The largest tables first, so that no thread idles for long at the end.
        chosen = (
            self.tables if tables is None else {name: self.tables[name] for name in map(self._known, tables)}
        )
        expect_cents(
            self._dsn, [table.relation for table in chosen.values()], self.catalog.types, self.options
        )
        largest = sorted(chosen.values(), key=lambda table: -table.nbytes)
        if where is not None:
            # One range per heap, so that the server can use an index.
            return [
                ReadRange(table.name, part, 0, None, part.nbytes, where)
                for table in largest
                for part in table.parts
            ]
        return [each for table in largest for each in self._ranges[table.name]]

    def read(
        self,
        tables: Collection[str] | None = None,
        *,
        where: str | None = None,
        threads: int = 1,
        progress: Callable[[LoadProgress], object] | None = None,
    ) -> SnapshotBatches:
        """Reads all tables. After a failure, read all tables again: no progress is kept.

        Args:
            tables: only these tables of the snapshot, by qualified name; None for all.
            where: only rows for which this SQL condition is true. Its operators and functions must have schemas.
            threads: number of parallel sessions. Up to two batches per session are queued in memory.
            progress: called after each range, from any thread.

        Returns:
            An iterator of (qualified name, record batch); a table without rows gives no batch.

        Raises:
            KeyError: for a table that is not in this snapshot.
            ValueError: if money does not have two fractional digits in this database: the values would be wrong.

        Raises (while iterating):
            SnapshotError: if the snapshot is gone.
            StoppedError: if `wanted` became false.
            DecodeError, psycopg2.Error: as for `SnapshotReader.read`.
        """
        expect_list("tables", tables)
        ranges = self._all_ranges(tables, where)
        counter = ProgressCounter(ranges, progress)
        found = SnapshotBatches()

        def run(put: Callable[[str, pa.RecordBatch], None], stop: threading.Event) -> None:
            def work(reader: SnapshotReader, each: ReadRange) -> None:
                read = reader.read(self.tables[each.table], each, lambda batch: put(each.table, batch))
                if read.rejects.num_rows:
                    found.rejects.append(read.rejects)
                counter.add(each, read.rows, read.nbytes)

            run_readers(self._connect, ranges, threads, work, found._lost, stop)

        found._batches = streamed(run, 2 * threads, self._keep_waiting)
        return found

    def read_each(self, ranges: Sequence[ReadRange], work: Work, *, threads: int = 1) -> None:
        """Calls `work` with a session for each of some ranges. A caller may keep what it has read if this fails.

        In another thread, another call waits until this one has ended.

        Args:
            ranges: of `ranges`.
            work: reads a range; called in several threads.
            threads: number of parallel sessions.

        Raises:
            StoppedError: if `wanted` became false.
            SnapshotError, DecodeError, psycopg2.Error: as for `SnapshotReader.read`.
            ValueError: for money as in `read`.
        """
        expect_list("ranges", ranges)
        relations = [self.tables[name].relation for name in {each.table for each in ranges}]
        expect_cents(self._dsn, relations, self.catalog.types, self.options)
        lost: dict[str, TableLostError] = {}
        with self._reads_each:
            run_readers(
                self._connect, list(ranges), threads, work, lost, threading.Event(), self._keep_waiting
            )
        for problem in lost.values():
            raise problem

    def load_to(
        self,
        directory: str | os.PathLike[str],
        *,
        threads: int = 1,
        progress: Callable[[LoadProgress], object] | None = None,
        file_mode: int | None = None,
    ) -> Loaded:
        """Writes all tables as Parquet files. The directory of a table appears when the table is complete.

        After a failure, call this again while the snapshot is open: durable ranges are not read again. If the snapshot
        is gone, the next load removes unfinished tables.

        Args:
            directory: parent of the tables' directories; it is created.
            threads: number of parallel sessions.
            progress: called after each range, from any thread.
            file_mode: maximum permissions of files, such as 0o640; directories get matching permissions. None leaves
                them to the umask.

        Raises:
            ValueError: for an invalid `file_mode`, and for money as in `read`.
            SnapshotError: if the snapshot is gone, if the directory has a table of another snapshot, or if another load
                writes into it.
            DecodeError, psycopg2.Error: as for `SnapshotReader.read`.
            OSError: if a file cannot be written.
        """
        directory = Path(directory)
        make_directory(directory, directory_mode(check_file_mode(file_mode)))
        with loading(directory):
            return self._load_to(directory, threads, progress, file_mode)

    def _load_to(
        self,
        parent: Path,
        threads: int,
        progress: Callable[[LoadProgress], object] | None,
        file_mode: int | None,
    ) -> Loaded:
        directories = {
            name: TableDirectory(parent, table, self.export, self._ranges[name], self.schema(name), file_mode)
            for name, table in self.tables.items()
        }
        ranges = [each for each in self._all_ranges() if each.name in directories[each.table].missing]
        counter = ProgressCounter(ranges, progress)
        lost: dict[str, TableLostError] = {}

        def work(reader: SnapshotReader, each: ReadRange) -> None:
            directory = directories[each.table]
            with directory.writing(each) as write:
                read: RangeRead = reader.read(self.tables[each.table], each, write)
            directory.add(each, read)
            counter.add(each, read.rows, read.nbytes)

        run_readers(self._connect, ranges, threads, work, lost, threading.Event())
        for name in lost:
            directories[name].discard()
        return Loaded(
            {name: each.loaded() for name, each in directories.items() if name not in lost},
            {name: str(problem) for name, problem in lost.items()},
        )
