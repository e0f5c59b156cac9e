"""The initial load: what the published tables hold at the moment from which a slot streams."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from pgoutput_fast._core.copy_rows import CopyRows
from pgoutput_fast.capture.session import session
from pgoutput_fast.capture.snapshot_export import export_snapshot
from pgoutput_fast.capture.snapshot_files import TableFiles, TableLoaded, loading
from pgoutput_fast.capture.snapshot_load import run_readers, streamed
from pgoutput_fast.capture.snapshot_progress import LoadProgress, ProgressCounter
from pgoutput_fast.capture.snapshot_ranges import ReadRange, ranges_of
from pgoutput_fast.capture.snapshot_read import RangeRead, SnapshotReader, TableLostError, gone, in_snapshot
from pgoutput_fast.capture.snapshot_tables import describe_tables
from pgoutput_fast.catalog import Catalog
from pgoutput_fast.durable import check_file_mode, directory_mode, make_directory
from pgoutput_fast.lists import expect_list
from pgoutput_fast.names import parse_qualified_name, quote_identifier, quote_qualified_name
from pgoutput_fast.options import Options

__all__ = ["Loaded", "Snapshot", "SnapshotBatches"]

RANGE_BYTES = 1 << 26


@dataclass(frozen=True)
class Loaded:
    """What `Snapshot.load_to` did.

    Attributes:
        tables: by qualified name, those that are there as a whole.
        lost: those that could not be read as they were, and why.
    """

    tables: dict[str, TableLoaded]
    lost: dict[str, str]


class SnapshotBatches:
    """An iterator of (table's qualified name, record batch) in any order.

    Attributes:
        lost: tables that could not be read as they were, and why; what came of them is not all of them.
        rejects: values without an Arrow form, record batches with REJECTS_SCHEMA.
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

    It lives until it is closed: use it in a `with` block.

    Args:
        dsn: of the database, as a user who may create slots and read the tables.
        publications: their names, as they are.
        slot: the permanent slot to create, which stays when this is closed; `Capture` then goes on from it. None for a
            snapshot alone, such as of tables that were added while another slot streams: changes of them that committed
            before `consistent_lsn` are in it, and are to be left out.
        tables: only these, by qualified name; None for all.
        options: how to decode, as for changes.
        two_phase, failover: of the slot, as for `create_slot`.
        user_types: whether the server is asked what types that are not built in are, as `Catalog.enriched` does.
            False gives what decoding does that knows no more than the stream says.
        range_bytes: a table is read in pieces of about so many bytes.

    Attributes:
        name: for `SET TRANSACTION SNAPSHOT`.
        slot: the slot's name.
        consistent_lsn: the snapshot has what committed before, the slot sends what committed there or later.
        tables: what there is to read, by qualified name.
        catalog: of these tables, for decoding their changes into the same schemas.

    Raises (and then leaves no slot behind):
        SnapshotError: if there is a slot of that name already.
        ValueError: for names that are none, and for what the server's version lacks.
        KeyError: for a table that is not published.
        psycopg2.Error: if the server refuses; `check` says what it lacks.
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
    ) -> None:
        expect_list("publications", publications)
        expect_list("tables", tables)
        if range_bytes < 1:
            raise ValueError("range_bytes must be a number of bytes")
        self._dsn = dsn
        self._publications = tuple(publications)
        self.options = options if options is not None else Options()
        self._holder = export_snapshot(dsn, slot, two_phase=two_phase, failover=failover)
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
            self.tables = {table.name: table for table in found}
            if tables is not None:
                self.tables = {name: self.tables[name] for name in map(self._known, tables)}
                chosen = [table.relation for table in self.tables.values()]
                self.catalog = Catalog(chosen, self.catalog.types)
            self._ranges = {
                name: ranges_of(table, self.export.server.major, block_size, range_bytes)
                for name, table in self.tables.items()
            }
        except BaseException:
            self._holder.drop()
            raise

    def _known(self, table: str) -> str:
        parts = parse_qualified_name(table)
        name = quote_qualified_name(*parts) if parts is not None else table
        if name not in self.tables:
            raise KeyError(
                f"{table} is not published here; there is {', '.join(sorted(self.tables)) or 'no table'}"
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

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the snapshot: nobody can read it any more. A permanent slot stays, and keeps WAL."""
        self._holder.close()

    def ranges(self, table: str) -> list[ReadRange]:
        """The pieces in which a table is read, for readers elsewhere.

        Raises:
            KeyError: for a table that is not here.
        """
        return list(self._ranges[self._known(table)])

    def schema(self, table: str) -> pa.Schema:
        """The schema of a table's record batches: that of its changes.

        Raises:
            KeyError: for a table that is not here.
            ValueError: if a column bears the name of a metadata column.
        """
        relation = self.tables[self._known(table)].relation
        schema: pa.Schema = CopyRows(relation, self.options, self.catalog.types, 0).schema
        return schema

    def spark_options(self) -> dict[str, str]:
        """For `spark.read.format("pgoutput")`, beside `table`: reads this snapshot while it lives, on the executors.

        They hold the connection string, with its password if there is one.
        """
        return {
            "mode": "snapshot",
            "dsn": self._dsn,
            "publication": ",".join(map(quote_identifier, self._publications)),
            "snapshot": self.name,
            "consistent_lsn": str(self.consistent_lsn),
        }

    def _connect(self) -> SnapshotReader:
        if self._holder.closed:  # the server may not have noticed yet
            raise gone(self.name)
        return SnapshotReader(self._dsn, self.export.name, self.catalog, self.options)

    def _all_ranges(self) -> list[ReadRange]:
        # The largest first: what is read last is short, and no thread waits for long.
        largest = sorted(self.tables.values(), key=lambda table: -table.nbytes)
        return [each for table in largest for each in self._ranges[table.name]]

    def read(
        self, *, threads: int = 1, progress: Callable[[LoadProgress], object] | None = None
    ) -> SnapshotBatches:
        """Reads all tables. What is read is not read again: to go on after a failure, read all of it anew.

        Args:
            threads: so many sessions read side by side. Of what they read, two batches each wait in memory.
            progress: told after each range, from any thread.

        Returns:
            An iterator of (qualified name, record batch); a table without rows gives none.

        Raises (while iterating):
            SnapshotError: if the snapshot is gone.
            DecodeError, psycopg2.Error: as for `SnapshotReader.read`.
        """
        ranges = self._all_ranges()
        counter = ProgressCounter(ranges, progress)
        found = SnapshotBatches()

        def run(put: Callable[[str, pa.RecordBatch], None], stop: threading.Event) -> None:
            def work(reader: SnapshotReader, each: ReadRange) -> None:
                read = reader.read(self.tables[each.table], each, lambda batch: put(each.table, batch))
                if read.rejects.num_rows:
                    found.rejects.append(read.rejects)
                counter.add(each, read.rows, read.nbytes)

            run_readers(self._connect, ranges, threads, work, found._lost, stop)

        found._batches = streamed(run, 2 * threads)
        return found

    def load_to(
        self,
        directory: str | os.PathLike[str],
        *,
        threads: int = 1,
        progress: Callable[[LoadProgress], object] | None = None,
        file_mode: int | None = None,
    ) -> Loaded:
        """Writes all tables as Parquet files, a directory for each, which appears when all of the table is in it.

        After a failure it can be called again, as long as the snapshot lives: what is durable is not read again. When
        the snapshot is gone what was unfinished is thrown away by the next load.

        Args:
            directory: of the tables' directories; it is created.
            threads: so many sessions read side by side.
            progress: told after each range, from any thread.
            file_mode: the permissions that files have at most, such as 0o640; directories have those that go with them.
                None leaves it to the umask.

        Raises:
            ValueError: for a `file_mode` that is none.
            SnapshotError: if the snapshot is gone, the directory holds a table of another one, or another load writes
                into it.
            DecodeError, psycopg2.Error: as for `SnapshotReader.read`.
            OSError: if a file cannot be written.
        """
        directory = Path(directory)
        make_directory(directory, directory_mode(check_file_mode(file_mode)))
        with loading(directory):
            return self._load_to(directory, threads, progress, file_mode)

    def _load_to(
        self,
        directory: Path,
        threads: int,
        progress: Callable[[LoadProgress], object] | None,
        file_mode: int | None,
    ) -> Loaded:
        files = {
            name: TableFiles(directory, table, self.export, self._ranges[name], self.schema(name), file_mode)
            for name, table in self.tables.items()
        }
        ranges = [each for each in self._all_ranges() if each.name in files[each.table].missing]
        counter = ProgressCounter(ranges, progress)
        lost: dict[str, TableLostError] = {}

        def work(reader: SnapshotReader, each: ReadRange) -> None:
            file = files[each.table].write(each)
            try:
                read: RangeRead = reader.read(self.tables[each.table], each, file.write)
            except BaseException:
                file.discard()
                raise
            files[each.table].add(each, read, file)
            counter.add(each, read.rows, read.nbytes)

        run_readers(self._connect, ranges, threads, work, lost, threading.Event())
        for name in lost:
            files[name].discard()
        return Loaded(
            {name: each.loaded() for name, each in files.items() if name not in lost},
            {name: str(problem) for name, problem in lost.items()},
        )
