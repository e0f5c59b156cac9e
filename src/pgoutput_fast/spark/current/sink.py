"""A sink for `foreachBatch` that maintains current tables: one row for each row of a table on the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.base.arguments import expect_kind, expect_list
from pgoutput_fast.catalog.identifiers import parse_qualified_name, qualified_like, quote_qualified_name
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.mirror.state.layout import OWN, WRITER
from pgoutput_fast.mirror.state.points import MOST_POINTS, Point, Points
from pgoutput_fast.protocol.limits import SPARK_BATCH_BYTES, SPARK_BATCH_ROWS
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.listing import SegmentList, catalog_of
from pgoutput_fast.segments.planner import (
    Span,
    bytes_per_core,
    outcomes_of_span,
    plan_read,
    rejected_in,
)
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.segments.tail import between, first_gap
from pgoutput_fast.spark.current.batch_checks import check_begin, check_notes, check_tables, check_target
from pgoutput_fast.spark.current.jobs import run_jobs
from pgoutput_fast.spark.current.keyed_changes import changes_by_key, check_keys
from pgoutput_fast.spark.current.mirrored import Mirrored, read_mirrored
from pgoutput_fast.spark.current.notes import Notes, read_notes, write_notes
from pgoutput_fast.spark.current.relation_checks import check_names, check_versions
from pgoutput_fast.spark.current.remedies import LOAD_AGAIN, START_AGAIN
from pgoutput_fast.spark.dataframes.plan import task_options
from pgoutput_fast.spark.merge import Merger
from pgoutput_fast.spark.sessions import cores_of, start_of
from pgoutput_fast.spark.source.stream_files import Emitted, read_emitted
from pgoutput_fast.spark.tables.problems import (
    OnTableError,
    TableProblems,
    check_on_table_error,
)
from pgoutput_fast.spark.tasks.current.divide import DivideChanges, ReadRange, ShuffledChanges
from pgoutput_fast.spark.tasks.current.reduce import TableLocation
from pgoutput_fast.storage.lease import WriterLease
from pgoutput_fast.storage.paths import absolute, redacted_uri
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.directories import CURRENT
from pgoutput_fast.tables.errors import RELOAD
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.files import CURRENT_FILE_BYTES
from pgoutput_fast.tables.formats import FORMATS, check_name, open_current
from pgoutput_fast.tables.naming import Naming
from pgoutput_fast.tables.options import Merges, TableOptions
from pgoutput_fast.tables.table import TABLE_ERRORS
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["current_sink"]

_SCRATCH = f"{OWN}/scratch"
_BUCKET_BYTES = 2 << 20
_MOST_BUCKETS = 256
# How often unneeded files are removed.
_CLEAN_SECONDS = 600.0


def current_sink(
    target: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    format: str = "delta",
    *,
    options: Options | None = None,
    file_bytes: int = CURRENT_FILE_BYTES,
    bucket_bytes: int = _BUCKET_BYTES,
    storage_options: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
    keep_points: int = MOST_POINTS,
    namespace: str = "",
    on_table_error: OnTableError = "stop",
    merge: Merges = "on_write",
) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that maintains current tables while a capture writes segments.

    The query names the segments of each batch (`format("pgoutput")` with the option `emit` set to `files`). Tasks
    reduce the changes to one effect per key, and rewrite the files with rows to remove or change. The driver then
    commits each table once per batch, with the LSN of the batch's last commit. If Spark runs a batch again, tables that
    already have it stay as they are.

    A nonexistent table begins empty, so the segments must have all its changes. To begin with existing rows, load the
    target with a `Mirror` first. The tables are those of a mirror: `<target>/current/<table>`. After each batch a point
    is recorded, so `pgoutput_fast.mirror.at(target)` returns consistent versions.

    Args:
        target: a directory or a URI, at the same path for driver and executors.
        tables: qualified names, quoted as in SQL. Default: all tables of the segments.
        format: `"delta"` (needs `pip install 'pgoutput_fast[delta]'`), or `"iceberg"` in a local target (needs
            `pip install 'pgoutput_fast[iceberg]'`).
        options: how to decode. `on_error`, `metadata_prefix` and `columns` must be the default.
        file_bytes: approximate maximum size of a file.
        bucket_bytes: approximate bytes of segments per reducing task, which determine its memory.
        storage_options: options of delta-rs for the store, beside the URI.
        catalog: types that the stream does not describe: pass a snapshot's catalog.
        keep_points: how many points can be read. Files that only older versions need are removed.
        namespace: a prefix of the schemas' names in the target, as that of the mirror.
        on_table_error: if a table cannot follow its changes, `"stop"` raises the error, and `"skip"` lets the others go
            on: the table stays as it is, with its position (see `table_status`). It is tried again when the query
            starts again, with all changes after its position. If no table is left, the error is raised.
        merge: how rows are updated and deleted, as for a `Mirror`: `on_read` marks them as deleted in files that stay.
            A dict is for the tables that it names.

    Raises:
        TypeError: if `namespace` is not a text.
        ValueError: for wrong arguments. The query fails if a table cannot follow its changes; the error says why, and
            whether to load the table again. It also fails if the target has a mirror of another format or slot, or one
            whose load or repair was interrupted.
        ImportError: at the first batch, if the format needs a package that is not installed.

    Example:
        query = (
            spark.readStream.format("pgoutput").option("emit", "files").load("segments/")
            .writeStream.foreachBatch(pgspark.current_sink("lake/"))
            .option("checkpointLocation", "checkpoint/").start()
        )
    """
    check_on_table_error(on_table_error)
    check_name(format, "current", of_files=True)
    if file_bytes < 1 or bucket_bytes < 1 or keep_points < 1:
        raise ValueError("file_bytes, bucket_bytes and keep_points must be at least 1")
    names = None if tables is None else _quoted(tables)
    decoding, _ = task_options(options, "committed")
    if decoding.on_error != "raise" or decoding.metadata_prefix != "_" or decoding.columns is not None:
        raise ValueError(
            "a current table needs the default of the options on_error, metadata_prefix and columns: it cannot leave "
            "changes out"
        )
    decoding = replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES)
    expect_kind("namespace", namespace, str, "a str")
    naming = Naming(namespace)
    table_options = TableOptions(storage_options, file_bytes=file_bytes, naming=naming, merge=merge)
    FORMATS[format].check(open_store(target), table_options, format)
    settings = _Settings(
        absolute(target),
        names,
        format,
        decoding,
        table_options,
        bucket_bytes,
        catalog,
        keep_points,
        namespace,
        on_table_error,
    )
    sinks: list[_Sink] = []

    def keep_current(batch: DataFrame, batch_id: int) -> None:
        found = read_emitted(batch, "current_sink")
        if found is not None:
            if not sinks:
                sinks.append(_Sink(settings))
            sinks[0].take(batch.sparkSession, found)

    return keep_current


def _quoted(tables: Sequence[str]) -> frozenset[str]:
    """The names as in relations."""
    expect_list("tables", tables)
    found = set()
    for name in tables:
        parts = parse_qualified_name(name)
        if parts is None:
            raise ValueError(f"{name!r} is not a qualified name such as {qualified_like(name)}")
        found.add(quote_qualified_name(*parts))
    return frozenset(found)


@dataclass(frozen=True)
class _Settings:
    """The arguments of a sink."""

    target: str
    tables: frozenset[str] | None
    format: str
    options: Options
    table_options: TableOptions
    bucket_bytes: int
    catalog: Catalog | None
    keep_points: int
    namespace: str
    on_table_error: OnTableError


@dataclass(frozen=True)
class _Batch:
    """The segments of a batch, and the outcomes of the transactions that end in it.

    `catalog` includes the user's; `sent` has only the descriptions in the stream, in their order.
    """

    spark: SparkSession
    segments: Sequence[Segment]
    outcomes: TransactionOutcomes
    catalog: Catalog
    sent: Catalog
    after: int
    last: int

    def check_complete(self) -> None:
        """Checks that the segments have all messages.

        Raises:
            ValueError: if some are missing.
        """
        gap = first_gap(self.segments, self.after + 1, self.last + 1)
        if gap is not None:
            raise ValueError(
                f"no segment has messages {gap[0]} to {gap[1]}, which the table needs, because it was stopped: "
                f"restore the segments. {LOAD_AGAIN}"
            )

    def check_begun(self, taken: int) -> None:
        """Checks that transactions that began before the batch and commit in it are complete.

        Args:
            taken: the tables have everything committed up to this message.

        Raises:
            ValueError: if messages are missing.
        """
        after = max(self.after, taken)
        older = self.outcomes.between(after + 1, self.last).committed_before(after + 1)
        begun = older[0] if older else None
        gap = None if begun is None else first_gap(self.segments, begun, self.after + 1)
        if gap is not None:
            raise ValueError(
                f"a transaction that began at message {begun} commits after message {self.after}, and no segment has "
                f"messages {gap[0]} to {gap[1]}, where it may have rows. Restore the segments, let a Mirror "
                "load the tables, or let a query with a new checkpoint and target begin later (option starting)"
            )


class _Sink:
    """The implementation of a sink. Its tables stay open between batches."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._store = open_store(settings.target)
        self._listed: dict[str, SegmentList] = {}
        self._tables: dict[str, tuple[CurrentFileTable, TableLocation]] = {}
        self._next_cleaning = 0.0
        # The start of the query, and the tables that were stopped since.
        self._start: str | None = None
        self._given_up: set[str] = set()
        self._check: Callable[[], object] = lambda: None

    def take(self, spark: SparkSession, found: Emitted) -> None:
        """Applies the messages of a batch to the tables."""
        directory, first, last = found.directory, found.first, found.last
        self._store.make()
        with WriterLease(self._store, WRITER) as lease:
            self._check = lease.check
            for table, _ in self._tables.values():
                table.check = lease.check
            # A mirror may have run since the last batch, so nothing that it writes is cached between batches.
            mirrored = read_mirrored(self._store, self._settings.format, self._settings.namespace)
            if mirrored is not None:
                mirrored.check_directory(directory)
            place, wanted = redacted_uri(absolute(directory)), self._settings.tables
            before = read_notes(self._store)
            if mirrored is None:
                check_target(self._store, before, found)
                check_notes(self._store, before, first)
                check_tables(self._store, wanted, before, directory, first)
            notes = before.within(place, wanted)
            if notes.seq is not None and last <= notes.seq:
                return
            check_begin(self._store, first, notes, mirrored)
            self._clear_scratch()
            batch = self._batch(spark, directory, first, last)
            taken = [-1 if notes.seq is None else notes.seq, -1 if mirrored is None else mirrored.last_seq]
            batch.check_begun(max(taken))
            problems = TableProblems(self._settings.on_table_error)
            notes = self._take_up(spark, directory, last, notes, mirrored, problems)
            names = [name for name in self._names(batch.catalog) if name not in notes.stopped]
            if mirrored is not None:
                for name in sorted(set(wanted or names) - set(notes.stopped)):
                    with problems.of(name):
                        mirrored.check_named([name], wanted=wanted is not None)
            commit = batch.outcomes.last_commit
            if commit is not None:
                going = [name for name in names if name not in problems.reasons]
                notes = self._applied(batch, going, commit[0], notes, mirrored, problems)
                notes = replace(notes, lsn=max(notes.lsn, commit[0]), time=commit[1])
            self._given_up |= problems.reasons.keys() - problems.passing
            notes = notes.with_stops(problems.reasons, first)
            problems.expect_others(sum(name not in notes.stopped for name in self._names(batch.catalog)))
            write_notes(self._store, replace(notes, seq=last), lease.check)
            points = Points(self._store, self._settings.keep_points, lease.check)
            if commit is not None:
                self._mark(batch.catalog, notes, mirrored, points)
            self._clear_scratch()
            self._clean(points, notes)

    def _marked(self) -> Collection[str]:
        """The tables of the last point."""
        known = Points(self._store, self._settings.keep_points).read()
        return known[-1].versions if known else ()

    def _check_there(
        self, table: str, oids: Collection[int], notes: Notes, mirrored: Mirrored | None
    ) -> None:
        """Checks that a missing current table was not lost: an earlier batch, or the mirror, may have created it.

        Args:
            table: its name.
            oids: oids of the relations whose changes it gets now.
            notes: name the tables that existed.
            mirrored: the mirror. A table replicated by it has a current table.

        Raises:
            ValueError: if it was lost.
        """
        # If the old table was removed, another relation of this name begins with its first change.
        known = notes.there.get(table)
        if not notes.there and notes.seq is not None and table in self._marked():
            known = notes.oids.get(table)  # the notes are of an earlier version
        if mirrored is not None or known in oids:
            raise ValueError(
                f"the current table of {table} in {self._store} is gone, and a new one would lack earlier changes. "
                + (f"Load it again with {RELOAD}" if mirrored is not None else START_AGAIN)
            )

    def _clear_scratch(self) -> None:
        """Removes files between jobs, including those left by a killed query."""
        for entry in self._store.entries(_SCRATCH, recursive=True):
            self._store.remove(entry.name)

    def _batch(self, spark: SparkSession, directory: str, first: int, last: int) -> _Batch:
        listed = self._listed.setdefault(directory, SegmentList(directory))

        def read(found: list[Segment]) -> _Batch:
            segments = [each for each in found if each.first_seq <= last]
            catalog = sent = catalog_of(segments)
            if self._settings.catalog is not None:
                catalog = self._settings.catalog.merged(sent)
            inside = [each for each in segments if each.last_seq >= first]
            damaged = rejected_in(inside, Span(first, last))
            if damaged is not None:
                raise ValueError(
                    f"{redacted_uri(damaged.path)} has messages that were rejected when they were tagged, and changes "
                    "may be among them: a current table cannot leave changes out. Let a Mirror load the tables"
                )
            earlier = partial(between, segments)
            _, outcomes = outcomes_of_span(inside, Span(first, last), listed.outcomes, earlier)
            return _Batch(spark, segments, outcomes, catalog, sent, first - 1, last)

        return listed.read(read)

    # ---- tables --------------------------------------------------------------------------------------------------

    def _names(self, catalog: Catalog) -> list[str]:
        """The tables of the sink."""
        wanted = self._settings.tables
        known = {each.qualified_name for each in catalog.relations}
        return sorted(known if wanted is None else known & wanted)

    def _table(self, name: str) -> tuple[CurrentFileTable, TableLocation]:
        if name not in self._tables:
            settings = self._settings
            table = open_current(settings.format, self._store, name, settings.table_options)
            assert isinstance(table, CurrentFileTable)
            table.check = self._check
            table.fix_statistics()
            place = TableLocation(settings.format, settings.target, name, settings.table_options)
            self._tables[name] = table, place
        return self._tables[name]

    def _take_up(
        self,
        spark: SparkSession,
        directory: str,
        last: int,
        notes: Notes,
        mirrored: Mirrored | None,
        problems: TableProblems,
    ) -> Notes:
        """Applies what stopped tables lack up to a message, once after each start of the query."""
        start = start_of(spark)
        if start != self._start:
            self._start, self._given_up = start, set()
        for name in sorted(set(notes.stopped) - self._given_up):
            with problems.of(name):
                after, position = notes.stopped[name].seq, self._table(name)[0].position()
                if notes.seq is not None and position is not None and position >= notes.lsn:
                    after = max(after, notes.seq)  # a mirror has loaded it again
                batch = self._batch(spark, directory, after + 1, last)
                batch.check_complete()
                batch.check_begun(after)
                commit = batch.outcomes.last_commit
                if commit is not None:
                    notes = self._apply(batch, [name], commit[0], notes, mirrored)
                notes = notes.without_stop(name)
        return notes

    def _applied(
        self,
        batch: _Batch,
        names: Sequence[str],
        lsn: int,
        notes: Notes,
        mirrored: Mirrored | None,
        problems: TableProblems,
    ) -> Notes:
        """Applies a batch to tables. If that fails for one of them, to one after the other."""
        try:
            return self._apply(batch, names, lsn, notes, mirrored)
        except TABLE_ERRORS:
            if not problems.skip:
                raise
        # Some may have been committed. Of the others, nothing is known yet.
        done = {name for name in names if self._has(name, lsn)}
        notes = notes.with_tables(read_notes(self._store), done)
        for name in names:
            self._clear_scratch()
            with problems.of(name):
                notes = self._apply(batch, [name], lsn, notes, mirrored)
        return notes

    def _has(self, name: str, lsn: int) -> bool:
        """Whether a table has everything up to a commit. A damaged one counts as a table that has not."""
        with suppress(*TABLE_ERRORS):
            return (self._table(name)[0].position() or 0) >= lsn
        return False

    def _apply(
        self, batch: _Batch, names: Sequence[str], lsn: int, notes: Notes, mirrored: Mirrored | None
    ) -> Notes:
        positions = {name: self._table(name)[0].position() for name in names}
        pending = {
            name: position for name, position in positions.items() if position is None or position < lsn
        }
        divided = self._divided(batch, pending)
        changed = sorted({each.table for each in divided})
        oids, keys = dict(notes.oids), dict(notes.keys)
        if mirrored is not None:
            mirrored.check_followed(changed)
            oids |= mirrored.oids  # a table may have been loaded again
            # The mirror has advanced a table, or has loaded it again.
            moved = {name for name in changed if (positions[name] or 0) > notes.lsn}
            keys |= {name: key for name, key in mirrored.keys.items() if name in moved or name not in keys}
        rounds, found = [], dict[str, int]()
        for name in changed:
            own = [each for each in divided if each.table == name]
            schema = self._table(name)[0].schema()
            there = None if schema is None else schema.names
            versions = {each.version for each in own}
            if there is None:
                sent = {each.oid for each in batch.sent.relations if each.version in versions}
                self._check_there(name, sent, notes, mirrored)
                check_names(name, versions, batch.sent, oids)
            oid = None if there is None and mirrored is None else oids.get(name)
            found[name] = check_versions(name, versions, batch.sent, there, oid)
            rounds.append(changes_by_key(name, own, batch.catalog))
            check_keys(rounds[-1], None if there is None else keys.get(name))
            keys[name] = list(rounds[-1][-1].key)
        notes = replace(notes, oids={**oids, **found}, keys=keys)
        if rounds:
            write_notes(self._store, notes, self._check)
        place = str(self._store.at(CURRENT))
        merger = Merger(batch.spark, place, str(self._store.at(_SCRATCH)))
        for n in range(max(map(len, rounds), default=0)):
            now = [each[n] for each in rounds if len(each) > n]
            ends = [lsn if len(each) == n + 1 else each[n].last for each in rounds if len(each) > n]
            merger.apply(now, self._tables, ends)
        # A repeated batch finds the tables that it has created.
        made = [name for name in names if name in found or positions[name] is not None]
        known = {name: notes.oids[name] for name in made if name in notes.oids}
        return replace(notes, there={**notes.there, **known})

    def _divided(self, batch: _Batch, positions: Mapping[str, int | None]) -> list[ShuffledChanges]:
        oids: dict[str, set[int]] = {}
        types: dict[str, dict[str, set[tuple[int, int]]]] = {}
        for relation in batch.catalog.relations:
            if relation.qualified_name in positions:
                oids.setdefault(relation.qualified_name, set()).add(relation.oid)
                seen = types.setdefault(relation.qualified_name, {})
                for column in relation.columns:
                    seen.setdefault(column.name, set()).add((column.type_oid, column.typmod))
        taken = {}
        for name, position in positions.items():
            nbytes = sum(
                each.row_groups[k].nbytes
                for each in batch.segments
                if each.last_seq > batch.after
                for k in each.row_groups_of(sorted(oids[name]))
            )
            # Equal values of two types may have different buckets.
            altered = any(len(each) > 1 for each in types[name].values())
            buckets = 1 if altered else min(_MOST_BUCKETS, 1 + nbytes // self._settings.bucket_bytes)
            taken[name] = ReadRange(position, buckets)
        if not taken:
            return []
        relations = {oid: 0 for each in oids.values() for oid in each}
        span, task_bytes = Span(batch.after + 1, batch.last), bytes_per_core(cores_of(batch.spark))
        specs = plan_read(batch.segments, span, relations, batch.outcomes, {}, task_bytes)
        catalog = batch.catalog.to_json()
        scratch = str(self._store.at(_SCRATCH))
        jobs = [
            DivideChanges(scratch, taken, catalog, self._settings.options, each, batch.after, batch.last)
            for each in specs
        ]
        return [each for found in run_jobs(batch.spark, jobs) for each in found]

    # ---- points --------------------------------------------------------------------------------------------------

    def _mark(self, catalog: Catalog, notes: Notes, mirrored: Mirrored | None, points: Points) -> None:
        """Records a point of consistent versions, unless a table is ahead of the others.

        The tables are those replicated by the mirror; without a mirror, those of the segments and of the last point.
        Tables that did not take the batch are omitted.
        """
        known = points.read()
        names = set(self._names(catalog)) | set(known[-1].versions if known else ())
        if mirrored is not None:
            names = set(mirrored.following)
        if self._settings.tables is not None:
            names &= self._settings.tables
        names -= set(notes.stopped)
        found = {name: now for name in sorted(names) if (now := self._table(name)[0].now()) is not None}
        reached = [each.lsn for each in found.values()] + [each.position for each in known[-1:]]
        # A mirror ran, and the query lags: the points of the mirror remain.
        if found and max(reached) <= notes.lsn:
            versions = {name: each.number for name, each in found.items()}
            points.add(Point(notes.lsn, notes.time, versions, notes.lsn))

    def _clean(self, points: Points, notes: Notes) -> None:
        """Removes files needed only by versions before the oldest point, and those left by killed tasks."""
        if time.monotonic() < self._next_cleaning:
            return
        oldest = points.oldest()
        for name, (table, _) in self._tables.items():
            version = None if name in notes.stopped else table.version()
            if version is not None:
                table.vacuum(max(1, version - oldest.get(name, version) + 1))
        self._next_cleaning = time.monotonic() + _CLEAN_SECONDS
