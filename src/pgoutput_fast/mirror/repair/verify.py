"""Compares a mirror with its server at one position. The mirror may run meanwhile, and nothing is changed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import no_such_name
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_qualified_name
from pgoutput_fast.merge.keys import key_of
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.follow.rejects import UNDECODABLE_ROW
from pgoutput_fast.mirror.follow.tables import MirroredTable, relation_columns
from pgoutput_fast.mirror.load.load import load_schema
from pgoutput_fast.mirror.load.source import rows_of
from pgoutput_fast.mirror.repair.compare.compare import Compared, Comparison, Differences, UncomparableError
from pgoutput_fast.mirror.repair.repair_table import why_uncomparable
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import LOCK_SECONDS, decoding_options
from pgoutput_fast.mirror.state.identity import read_source
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.view.moment import Moment, open_moment
from pgoutput_fast.mirror.view.read import rows_of as rows_at
from pgoutput_fast.postgres.row_age import of_one_table
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.errors import MirrorError
from pgoutput_fast.tables.options import TableOptions

__all__ = ["TableVerification", "verify"]

_log = logging.getLogger("pgoutput_fast.mirror")

# Attempts to compare a table, if the mirror passes the position or removes a file meanwhile.
_TRIES = 3
# The most keys that are kept as a sample, and the most sets in which they are looked for.
_SAMPLE = 10
# Without a reader of the slot for this time, the mirror does not run.
_AWAY_SECONDS, _POLL_SECONDS = 5.0, 0.2


@dataclass(frozen=True)
class TableVerification:
    """The result for one table.

    Attributes:
        table: qualified name, quoted as in SQL.
        position: the LSN at which the mirror's rows were read; None if they were not compared.
        server_position: the LSN at which the server's rows were read. If it is later than `position`, the mirror was
            not that far yet, and differences may be changes that it has not taken.
        rows: how many rows the server has.
        mirror_rows: how many rows the mirror has.
        ranges: how many ranges of keys were compared, each of about 64 rows. Without a key, rows are divided by a hash.
        different: how many of them differ.
        samples: some of the rows that differ, as (what, key): `missing` in the mirror, `extra` there, or `changed`, and
            the columns of the key. No other values; nothing for a table without a key.
        problem: why the table was not compared; None if it was.
    """

    table: str
    position: int | None
    server_position: int
    rows: int = 0
    mirror_rows: int = 0
    ranges: int = 0
    different: int = 0
    samples: tuple[tuple[str, Mapping[str, object]], ...] = ()
    problem: str | None = None

    @property
    def equal(self) -> bool:
        """Whether all rows are equal."""
        return self.problem is None and not self.different

    @property
    def is_behind(self) -> bool:
        """Whether the mirror was read at an earlier position than the server."""
        return self.position is not None and self.position < self.server_position

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.table}: not compared: {self.problem}"
        result = "equal" if self.equal else f"{self.different:,} of {self.ranges:,} ranges differ"
        behind = ""
        if self.is_behind and not self.equal:
            behind = (
                f". The mirror has only what committed up to {format_lsn(self.position or 0)}, and the server was read "
                f"at {format_lsn(self.server_position)}: run the mirror meanwhile, or repair it if its slot is lost"
            )
        return f"{self.table}: {self.rows:,} rows, {self.mirror_rows:,} in the mirror: {result}{behind}"


def verify(
    target: str | os.PathLike[str],
    dsn: str,
    *,
    tables: Collection[str] | None = None,
    options: Options | None = None,
    threads: int = 1,
    wait_seconds: float = 60.0,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> list[TableVerification]:
    """Compares the tables of a mirror with those of its server, all rows and columns, by digests of ranges of keys.

    The server is read in a snapshot, and the mirror at the position of the snapshot: its current tables with the
    changes of the histories. So the mirror may run meanwhile, and should: a mirror that does not run lacks what
    committed since. Nothing is changed. While it runs, the snapshot needs a temporary slot, and keeps old rows on the
    server.

    Args:
        target: of the mirror: a path or a URI.
        dsn: of the server, with a user as for the mirror.
        tables: only these, by qualified name; None for all that are published.
        options: how to decode, as the mirror does.
        threads: number of sessions that read a table of the server.
        wait_seconds: how long a running mirror may need to reach the position of the snapshot.
        storage_options, iceberg_catalog: as for `fresh`.

    Returns:
        A result for each table, sorted by name.

    Raises:
        LookupError: if the target has no mirror, or not such a table.
        MirrorError: if the dsn leads to another server or database than the mirror's.
        ValueError: if a file of the mirror is damaged, or for an option that a mirror sets itself.
        SnapshotError, psycopg2.Error: if the server refuses.
        OSError: if the target cannot be read.
    """
    expect_list("tables", tables)
    task = _Verification(
        target,
        dsn,
        TableOptions(storage_options, iceberg_catalog),
        decoding_options(options),
        threads,
        wait_seconds,
    )
    return task.run(None if tables is None else {_quoted(each) for each in tables})


def _quoted(table: str) -> str:
    parts = parse_qualified_name(table)
    return table if parts is None else quote_qualified_name(*parts)


class _MirroredRows:
    """A table of the mirror at one moment."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def schema(self) -> pa.Schema:
        return self._moment.schema

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        return rows_at(self._moment, list(columns)).pieces(columns)


class _Verification:
    """The arguments of `verify`."""

    def __init__(
        self,
        target: str | os.PathLike[str],
        dsn: str,
        options: TableOptions,
        decoding: Options,
        threads: int,
        wait_seconds: float,
    ) -> None:
        self._target, self._dsn, self._options = target, dsn, options
        self._store = open_store(target)
        self._decoding, self._threads, self._wait_seconds = decoding, threads, wait_seconds
        self._state = MirrorState(self._store)
        self._known = self._state.begun(options)
        self._view = ServerView(dsn, self._known.publications)

    def run(self, names: Collection[str] | None) -> list[TableVerification]:
        source = read_source(self._dsn)
        if self._known.source not in (None, source):
            assert self._known.source is not None
            raise MirrorError(
                f"{self._store} has the tables of database {self._known.source[1]!r} of the server "
                f"{self._known.source[0]}, but the dsn names database {source[1]!r} of the server {source[0]}"
            )
        mirrored = {each.record.table for each in self._tables() if not each.record.is_unpublished}
        for name in sorted(names or ()):
            if name not in mirrored:
                raise LookupError(no_such_name("mirrored table", name, mirrored))
        open_names = mirrored if names is None else set(names)
        found: dict[str, TableVerification] = {}
        for left in reversed(range(_TRIES)):
            # With a new snapshot: the mirror may have passed the position of the last one.
            for each in self._compared(sorted(open_names - found.keys()), last=not left):
                found[each.table] = each
        return [found[name] for name in sorted(found)]

    def _tables(self) -> Tables:
        return Tables(
            self._store, self._known.format, self._known.table_options(self._options), self._state, self._view
        )

    def _compared(self, names: Sequence[str], *, last: bool) -> Iterator[TableVerification]:
        """Yields the results for tables, without those for which another try may help."""
        if not names:
            return
        with Snapshot(
            self._dsn, self._known.publications, options=self._decoding, lock_seconds=LOCK_SECONDS
        ) as snapshot:
            position = snapshot.consistent_lsn - 1
            is_there = self._reached(position)
            tables = {each.record.table: each for each in self._tables()}
            for name in names:
                try:
                    yield self._compare(tables.get(name), name, snapshot, is_there=is_there)
                except (LookupError, FileNotFoundError, MirrorError, SnapshotError, ValueError) as problem:
                    why = problem.args[0] if isinstance(problem, KeyError) else str(problem)
                    if last or isinstance(problem, ValueError):
                        yield TableVerification(name, None, position, problem=why)

    def _reached(self, position: int) -> bool:
        """Waits until the histories have all commits up to an LSN. False if the mirror does not run, or takes long."""
        end = time.monotonic() + self._wait_seconds
        seen = time.monotonic()
        if (self._state.history_lsn() or 0) < position:
            _log.info("waiting until the mirror has what committed up to %s", format_lsn(position))
        while (self._state.history_lsn() or 0) < position:
            now = time.monotonic()
            if self._view.sends(self._known.slot):
                seen = now
            if now >= end or now - seen >= _AWAY_SECONDS:
                why = "does not run" if now < end else "is not that far yet"
                _log.info("the mirror %s: its rows are compared as they are", why)
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _compare(
        self, table: MirroredTable | None, name: str, snapshot: Snapshot, *, is_there: bool
    ) -> TableVerification:
        position = snapshot.consistent_lsn - 1
        if table is None or table.record.on_server not in snapshot.tables:
            return TableVerification(name, None, position, problem="it is not published any more")
        if (why := why_uncomparable(table, snapshot, self._view)) is not None:
            return TableVerification(name, None, position, problem=why)
        moment = open_moment(self._target, name, position if is_there else "latest", self._options)
        on_server = table.record.on_server
        relation, schema = snapshot.tables[on_server].relation, load_schema(snapshot, on_server)
        key = key_of(relation)

        def read(where: str | None) -> Iterator[pa.Table]:
            batches = snapshot.read([on_server], where=where, threads=self._threads)
            yield from rows_of(batches, schema, position, lambda: True)
            if any(pc.any(pc.is_null(each["change_type"])).as_py() for each in batches.rejects):
                raise ValueError(UNDECODABLE_ROW)

        with of_one_table(on_server):
            comparison = Comparison(_MirroredRows(moment), key, read, schema, relation_columns(schema).names)
            try:
                compared = comparison.sets()
                samples = _samples(comparison, compared, key)
            except UncomparableError as problem:
                return TableVerification(name, None, position, problem=str(problem))
        return TableVerification(
            name,
            moment.position,
            position,
            int(compared.server.rows.sum()),
            int(compared.ours.rows.sum()),
            compared.division.count,
            len(compared.different),
            samples,
        )


def _samples(
    comparison: Comparison, compared: Compared, key: Sequence[str]
) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Keys of some rows that differ."""
    if not key or not len(compared.different):
        return ()
    try:
        first: Differences = comparison.rows(compared, [compared.different[:_SAMPLE]])
    except UncomparableError:  # a range has very many rows that differ
        return ()
    kinds = (("missing", first.new), ("changed", first.changed), ("extra", first.removed))
    found = ((what, row) for what, rows in kinds for row in rows.slice(0, _SAMPLE).select(key).to_pylist())
    return tuple(islice(found, _SAMPLE))
