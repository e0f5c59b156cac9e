"""Merges the changes of a batch into current tables: tasks do the work, and the driver commits each table once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from pyspark.sql import SparkSession

from pgoutput_fast.merge.commit import commit, expect_conflict, is_applied, until_committed
from pgoutput_fast.merge.compaction import compact, to_compact
from pgoutput_fast.merge.effect.schema import COMMIT_LSN
from pgoutput_fast.merge.plan import MergePlan
from pgoutput_fast.merge.stored_effect import StoredEffect
from pgoutput_fast.merge.units import Unit, UnitResult
from pgoutput_fast.spark.current.jobs import run_jobs
from pgoutput_fast.spark.current.keyed_changes import KeyedChanges, groups_of
from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.tasks.current.merge_units import RunUnit
from pgoutput_fast.spark.tasks.current.reduce import ReduceChanges, TableLocation
from pgoutput_fast.tables.data_files import NewFiles
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.table import ConflictError, Version

__all__ = ["Merger"]

# Maximum number of tasks per core that rewrite files.
_TASKS_PER_CORE = 2

_Result: TypeAlias = UnitResult | FileNotFoundError


@dataclass
class _Merge:
    """The merge of changes into their table. Its effects are computed once, and planned for each attempt."""

    changes: KeyedChanges
    table: CurrentFileTable
    position: int
    before: Version | None
    units: int
    effects: tuple[StoredEffect, ...] = ()
    results: list[_Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = self.changes.columns
        self.identity = self.changes.key or tuple(name for name in self.columns.names if name != COMMIT_LSN)
        self.schema = self.table.schema_with(self.before, self.columns)
        self._after = None if self.before is None else self.before.lsn

    def __str__(self) -> str:
        return self.changes.table

    def begin(self) -> bool:
        """Plans an attempt. Returns whether there is something to do."""
        now = self.table.now()
        if is_applied(self.table, None if now is None else now.lsn, self.position, self._after):
            return False
        if (now and now.number) != (self.before and self.before.number):
            self.schema = self.table.schema_with(now, self.columns)
        self.before, self.results = now, []
        self.plan = MergePlan(
            self.table, now, self.changes.key, self.identity, self.schema, self.effects, self.units
        )
        return True

    @property
    def missing(self) -> FileNotFoundError | None:
        """The error of a unit whose files are gone."""
        return next((each for each in self.results if isinstance(each, FileNotFoundError)), None)

    @property
    def done(self) -> list[UnitResult]:
        """The results of the other units."""
        return [each for each in self.results if isinstance(each, UnitResult)]

    def finish(self) -> bool:
        """Commits the files of all units. Returns whether another program has changed the table: then plan again."""
        try:
            with NewFiles(self.table.store, self.table.files, self.table.file_bytes) as files:
                done = _collected(self.results, files)
                removed, deleted = self.plan.removed(done), self.plan.deleted(done)
                commit(self.table, files, self.before, self.schema, self.position, removed, deleted)
        except (ConflictError, FileNotFoundError) as problem:
            expect_conflict(self.table, self.before, problem)
            return True
        return False


class Merger:
    """Applies changes to tables.

    Args:
        spark: the session.
        target: path or URI of the store with the current tables.
        scratch: the directory of files between jobs.
    """

    def __init__(self, spark: SparkSession, target: str, scratch: str) -> None:
        self._spark, self._target, self._scratch = spark, target, scratch
        self._units = _TASKS_PER_CORE * cores_of(spark)

    def apply(
        self,
        changes: Sequence[KeyedChanges],
        tables: Mapping[str, tuple[CurrentFileTable, TableLocation]],
        positions: Sequence[int],
    ) -> None:
        """Applies the changes of tables.

        Args:
            changes: of each table under one key.
            tables: {qualified name: the table, and its location}.
            positions: the resulting position of each table.

        Raises:
            ValueError: if a table cannot take its changes. It is unchanged; others may have theirs.
            RuntimeError: if concurrent changes of a table conflict repeatedly.
        """
        merges = []
        for each, position in zip(changes, positions, strict=True):
            table, _ = tables[each.table]
            merges.append(_Merge(each, table, position, table.now(), self._units))
        self._reduce(merges, tables)
        until_committed(merges, self._attempt)
        self._compact([merge.table for merge in merges])

    def _reduce(
        self, merges: Sequence[_Merge], tables: Mapping[str, tuple[CurrentFileTable, TableLocation]]
    ) -> None:
        jobs = [
            ReduceChanges(
                self._scratch,
                tables[merge.changes.table][1],
                merge.changes.key,
                merge.identity,
                merge.schema,
                files,
                merge.before is None,
            )
            for merge in merges
            for files in groups_of(merge.changes.divided)
        ]
        effects: list[tuple[str, StoredEffect]] = run_jobs(self._spark, jobs)
        for merge in merges:
            merge.effects = tuple(effect for table, effect in effects if table == merge.changes.table)

    def _attempt(self, merges: Sequence[_Merge]) -> Sequence[_Merge]:
        """Merges effects into the current versions. Returns those whose table was changed concurrently."""
        merges = [merge for merge in merges if merge.begin()]
        self._run([(merge, unit) for merge in merges for unit in merge.plan.rewrites])
        self._run(
            [
                (merge, unit)
                for merge in merges
                if merge.missing is None
                for unit in merge.plan.new_rows(merge.done)
            ]
        )
        return [merge for merge in merges if merge.finish()]

    def _compact(self, tables: Sequence[CurrentFileTable]) -> None:
        """Writes files anew that merges no longer do."""
        versions = [(table, now) for table in tables if table.marks and (now := table.now()) is not None]
        units = [(k, unit) for k, version in enumerate(versions) for unit in to_compact(*version)]
        results = self._results([(versions[k][0], unit) for k, unit in units])
        for k in sorted({k for k, _ in units}):
            of_table = [result for (n, _), result in zip(units, results, strict=True) if n == k]
            of_units = [unit for n, unit in units if n == k]
            compact(*versions[k], of_units, partial(_collected, of_table))

    def _run(self, units: Sequence[tuple[_Merge, Unit]]) -> None:
        results = self._results([(merge.table, unit) for merge, unit in units])
        for (merge, _), result in zip(units, results, strict=True):
            merge.results.append(result)

    def _results(self, units: Sequence[tuple[CurrentFileTable, Unit]]) -> list[_Result]:
        return run_jobs(self._spark, [RunUnit(self._target, table.file_bytes, unit) for table, unit in units])


def _collected(results: Sequence[_Result], files: NewFiles) -> list[UnitResult]:
    """What units did. Their files are in `files` then, even if the files of another unit are gone."""
    done = [each for each in results if isinstance(each, UnitResult)]
    files.written = [file for result in done for file in result.added]
    for each in results:
        if isinstance(each, FileNotFoundError):
            raise each
    return done
