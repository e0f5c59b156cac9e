"""One run over a source: which tables it writes, the job on the executors, the commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import Row

from pgoutput_fast.catalog.patterns import is_match
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import REJECTS_SCHEMA
from pgoutput_fast.spark.tables.checks import begun_with_query, checked_targets, with_rows
from pgoutput_fast.spark.tables.plan import (
    DescribedTable,
    PartitionBy,
    TargetNames,
    described_tables,
    plan_tables,
)
from pgoutput_fast.spark.tables.problems import OnTableError, TableProblems
from pgoutput_fast.spark.tables.run import Run, begin_run
from pgoutput_fast.spark.tables.sources import SegmentSource, Source
from pgoutput_fast.spark.tasks.tables import OTHER_REJECTS, RejectedPart, TablePart, WriteTables, rejects_of
from pgoutput_fast.storage.parquet import Compression
from pgoutput_fast.tables.files import WrittenFile
from pgoutput_fast.tables.naming import Naming
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.progress import TableProgress
from pgoutput_fast.tables.table import Mode, Ordinal, OutcomeUnknownError

__all__ = ["Remembered", "TableJob"]

# Tables are read and committed side by side: most of the time, this waits for the disk or the store.
_AT_A_TIME = 8

# A batch of a query waits this long for another query that writes to the same target.
_TURN_SECONDS = 600.0

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")


@dataclass
class Remembered:
    """What a sink remembers between batches.

    Attributes:
        tables: what the last batch recorded of the tables. With another record, something else has written the table.
        stopped: directories of the tables that were stopped in a batch: they are tried again when the query starts
            again.
        query: names the start of the query; None if that is not known.
    """

    tables: dict[str, TableProgress] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    query: str | None = None

    def begin(self, query: str | None) -> None:
        """Begins a batch."""
        if query != self.query:
            self.query, self.stopped = query, set()


@dataclass(frozen=True)
class TableJob:
    """What runs write, and how: the arguments of `write_tables`, checked."""

    target: str
    format: str
    table_options: TableOptions
    tables: Sequence[str] | None
    exclude: Sequence[str]
    options: Options
    partition_by: PartitionBy
    file_bytes: int
    compression: Compression
    on_table_error: OnTableError
    naming: Naming

    def run(self, source: Source, mode: Mode, remembered: Remembered | None = None) -> list[Row]:
        """Writes what is new in the source.

        Args:
            source: the payloads.
            mode: as for `write_tables`.
            remembered: what the sink remembers, if the source is a batch of its query.

        Returns:
            A row per table that was looked at.
        """
        problems = TableProblems(self.on_table_error)
        database = None if source.stream is None or source.stream.names is None else source.stream.names[1]
        names = TargetNames(source.catalog, self.format, self.naming, database)
        named = self._named(source)
        # Before the target is made: a run that is refused for its arguments makes none.
        described = self._described(source, names, named, problems) if remembered is None else []
        wait_seconds = 0.0 if remembered is None else _TURN_SECONDS
        with begin_run(self.target, self.format, self.table_options, wait_seconds) as run:
            others: Collection[str] = ()
            if remembered is not None:
                named, others = _that_change(run, source, names, named, remembered)
                described = self._described(source, names, named, problems)
            rows = self._written(run, source, described, names, mode, problems, others)
            known = {row["table"] for row in rows}
            rows += [
                _summary(directory, [], _position(run, directory), reason)
                for directory, reason in problems.reasons.items()
                if directory not in known
            ]
            going = [each for each in others if remembered is None or each not in remembered.stopped]
            problems.expect_others(len(going) + sum(row["error"] is None for row in rows))
            self._keep(run, source, names, problems)
            if remembered is not None:
                remembered.tables = dict(run.progress.tables)
                remembered.stopped |= problems.reasons.keys() - problems.passing
            return rows

    def _named(self, source: Source) -> Sequence[str | int]:
        """The tables of the source, or those that the user named, without those that are left out."""
        known = source.catalog
        named: Iterable[str | int] = sorted({relation.qualified_name for relation in known.relations})
        if self.tables is not None:
            named = self.tables
        return [name for name in named if not is_match(known.named(name)[-1].qualified_name, self.exclude)]

    def _described(
        self, source: Source, names: TargetNames, named: Sequence[str | int], problems: TableProblems
    ) -> list[DescribedTable]:
        # If no description can be read, all that depends on them is among the rejects.
        more = source.batch is not None or (source.rejected and not source.catalog.relations)
        return described_tables(names, named, self.options, self.partition_by, problems, more=more)

    def _written(
        self,
        run: Run,
        source: Source,
        described: Sequence[DescribedTable],
        names: TargetNames,
        mode: Mode,
        problems: TableProblems,
        others: Collection[str],
    ) -> list[Row]:
        _open(run, [names.directory(each.resolved.table) for each in described])
        planned = plan_tables(described, self.options, names, run, mode, problems)
        if self.tables is None:
            planned = with_rows(run, planned, source)
        if isinstance(source, SegmentSource) and source.batch is not None:
            named = self.tables is not None
            planned = begun_with_query(
                run, planned, source, source.batch, problems, named=named, others=bool(others)
            )
        planned = checked_targets(run, planned, mode, source, self.options, problems)
        parts = [each.part for each in planned]
        if not parts and not source.rejected:
            return []
        task = WriteTables(
            self.target,
            run.name,
            tuple(parts),
            run.hidden,
            self.file_bytes,
            self.compression,
            self.options.metadata_prefix,
            None,
            source.last_seq,
            problems.skip,
            self._rejected_part(run, source, names, mode, {*others, *problems.reasons}),
        )
        files, failed = source.write(task)
        for directory, reason in failed.items():
            problems.add(directory, ValueError(f"{run.store}/{directory}: {reason}"))
        return _commit(run, parts, files, source, mode, problems)

    def _rejected_part(
        self, run: Run, source: Source, names: TargetNames, mode: Mode, left: Collection[str]
    ) -> RejectedPart | None:
        if not source.rejected:
            return None
        written = run.own_ordinal(OTHER_REJECTS) if mode == "append" else None
        after = None if written is None else written.seq
        left_out = frozenset(
            source.catalog.named(name)[-1].qualified_name
            for name in self._named(source)
            if names.directory(name) in left
        )
        return RejectedPart(source.catalog.to_json(), after, self.options.on_error == "raise", left_out)

    def _left_out(self, source: Source, names: TargetNames) -> set[str]:
        """The directories of the tables that `exclude` leaves out."""
        found = set[str]()
        known = {each.qualified_name for each in source.catalog.relations}
        excluded = {each for each in known if is_match(each, self.exclude)}
        for name in excluded:
            with suppress(Exception):  # a function of the user need not know such a table
                found.add(names.directory(name))
        return found.difference(map(names.directory, self._named(source))) if found else found

    def _keep(self, run: Run, source: Source, names: TargetNames, problems: TableProblems) -> None:
        """Records how far the tables were read, and which are stopped or left out."""
        progress = run.progress
        for directory, reason in problems.reasons.items():
            progress.stop(directory, self.format, reason, source.stream)
        for directory in self._left_out(source, names):
            progress.leave_out(directory, source.stream)
        progress.see(Ordinal(source.last_seq, source.stream))
        run.lease.check()
        progress.save()


def _that_change(
    run: Run, source: Source, names: TargetNames, named: Sequence[str | int], remembered: Remembered
) -> tuple[Sequence[str | int], Collection[str]]:
    """(the tables of a batch that must be looked at, the directories of the others, which it advances, or are stopped).

    A table stays out if the last batch left it at the beginning of this one and no row in between is for it.
    """
    assert isinstance(source, SegmentSource)
    assert source.batch is not None
    directories, tables = names.directories(named), run.progress.tables
    # Somebody may have taken up a table meanwhile.
    remembered.stopped = {each for each in remembered.stopped if each in tables and tables[each].stop}
    stopped = remembered.stopped & set(directories.values())
    first = source.batch.first
    at = {
        directory: known
        for directory in directories.values()
        if (known := tables.get(directory)) is not None
        and known == remembered.tables.get(directory)
        and known.stop is None
        and known.reached.seq >= first - 1
    }
    oids: dict[str, set[int]] = {}
    for name, directory in directories.items():
        oids.setdefault(directory, set()).update(each.oid for each in source.catalog.named(name))
    changed = _changed(source, first, [oids[each] for each in at]) if at else ()
    quiet = {each for each in at if oids[each].isdisjoint(changed)}
    reached = Ordinal(source.last_seq, source.stream, source.transactions)
    for directory in quiet:
        known = at[directory]
        position = max(reached, known.reached, key=_seq)
        run.progress.advance(directory, known.format, known.own, position, known.checked)
    left = stopped | quiet
    return [name for name, directory in directories.items() if directory not in left], left


def _changed(source: SegmentSource, first: int, oids: Iterable[Collection[int]]) -> Collection[int]:
    """Those of the relations that have rows for the tables in a batch. All of them, if that is not known."""
    every = {each for some in oids for each in some}
    # A message that was set aside may be of any table. Where segments are missing, each table has its own check.
    if source.rejected or source.gap(first - 1) is not None:
        return every
    begun = source.begun_before(first - 1) if source.transactions == "committed" else None
    if begun is not None and source.gap(begun - 1) is not None:
        return every
    return source.changed(every, first if begun is None else begun)


def _position(run: Run, directory: str) -> int | None:
    """The position of a table; None if it has none, or cannot be read."""
    with suppress(ValueError):
        found = run.ordinal(directory)
        return None if found is None else found.seq
    return None


def _seq(position: Ordinal) -> int:
    return position.seq


def _commit(
    run: Run,
    parts: Sequence[TablePart],
    files: Iterable[WrittenFile],
    source: Source,
    mode: Mode,
    problems: TableProblems,
) -> list[Row]:
    position = Ordinal(source.last_seq, source.stream, source.transactions)
    by_table: dict[str, list[WrittenFile]] = {}
    for file in sorted(files, key=lambda each: (each.first or 0, each.name)):
        by_table.setdefault(file.directory, []).append(file)

    # Files there that no commit adds are removed at the end.
    for directory in by_table.keys() | problems.reasons.keys():
        run.added.setdefault(directory, set())
    for directory in problems.reasons:
        run.added.setdefault(rejects_of(directory), set())

    if mode == "overwrite":
        run.lease.check()
        run.progress.forget(part.directory for part in parts if part.directory not in problems.reasons)
    if source.rejected:
        _commit_rejects(run, OTHER_REJECTS, by_table.get(OTHER_REJECTS, []), position, mode)

    def commit(part: TablePart) -> Row:
        directory = part.directory
        own, rows, rejects = (
            run.own_ordinal(directory),
            by_table.get(directory, []),
            by_table.get(rejects_of(directory), []),
        )
        if directory not in problems.reasons:
            with problems.of(directory):
                # Rejects are committed first: a repeated run writes only those of tables that were not committed.
                _commit_rejects(run, rejects_of(directory), rejects, position, mode)
                return _commit_table(run, part, own, rows, position, mode)
        return _summary(directory, [], part.after, problems.reasons[directory])

    return _side_by_side(run, commit, parts)


def _commit_table(
    run: Run,
    part: TablePart,
    own: Ordinal | None,
    files: Sequence[WrittenFile],
    position: Ordinal,
    mode: Mode,
) -> Row:
    begins = mode == "overwrite" or part.after is None
    # A query may lag behind `write_tables` calls in the meantime.
    reached = position.seq if begins else max(part.after or 0, position.seq)
    if reached != position.seq:
        return _summary(part.directory, files, reached)
    checked = -1
    if begins or files or own is None or _lacks_marks(own, position):
        run.commit(part.directory, files, position, part.decode.target, mode, part.partitioning.columns)
        own = position
    else:
        table, record = run.table(part.directory), run.progress.tables.get(part.directory)
        checked = -1 if table.known is None else table.known.number
        if record is None or record.checked != checked:
            run.lease.check()  # it may commit, too
            table.fix_statistics()
    run.progress.advance(part.directory, run.format, own.seq, position, checked)
    return _summary(part.directory, files, reached)


def _lacks_marks(before: Ordinal, position: Ordinal) -> bool:
    """Whether an earlier version wrote a table: its stream or its kind of transactions is not recorded."""
    return before.transactions is None or (position.stream is not None and before.stream is None)


def _commit_rejects(
    run: Run, directory: str, files: Sequence[WrittenFile], position: Ordinal, mode: Mode
) -> None:
    if not files and mode != "overwrite":
        return
    schema = pa.schema([pa.field(field.name, field.type) for field in REJECTS_SCHEMA])
    before = run.own_ordinal(directory)
    overwritten = mode == "overwrite" and (files or before is not None)
    if overwritten or (mode != "overwrite" and (before is None or before.seq < position.seq)):
        run.commit(directory, files, position, schema, mode)


def _summary(
    directory: str, files: Sequence[WrittenFile], position: int | None, error: str | None = None
) -> Row:
    return Row(
        table=directory,
        rows=sum(each.rows for each in files),
        files=len(files),
        bytes=sum(each.nbytes for each in files),
        first=min((each.first for each in files if each.first is not None), default=None),
        last=max((each.last for each in files if each.last is not None), default=None),
        position=position,
        error=error,
    )


def _open(run: Run, directories: Sequence[str]) -> None:
    """Reads the newest versions of tables, which are used later, one by one."""

    def read(directory: str) -> None:
        with suppress(Exception):  # the use meets it again
            run.own_ordinal(directory)

    _side_by_side(run, read, directories)


def _side_by_side(run: Run, do: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
    """Calls a function for several tables at a time. After an error, no other call begins."""
    if not run.target.side_by_side or len(items) < 2:
        return [do(each) for each in items]
    with ThreadPoolExecutor(_AT_A_TIME, "tables") as pool:
        calls = [pool.submit(do, each) for each in items]
        try:
            wait(calls, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    errors = [problem for call in calls if not call.cancelled() and (problem := call.exception()) is not None]
    # The files of a commit that may still be made must stay, whatever else failed.
    for problem in sorted(errors, key=lambda each: not isinstance(each, OutcomeUnknownError)):
        raise problem
    return [call.result() for call in calls]
