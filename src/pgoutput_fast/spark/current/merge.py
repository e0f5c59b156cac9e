"""Merges the changes of a batch into current tables: tasks do the work, and the driver commits each table once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pgoutput_fast.merge.effect.schema import COMMIT_LSN
from pgoutput_fast.spark.current.jobs import run_jobs
from pgoutput_fast.spark.current.stretches import Stretch, groups_of
from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.tasks.current.fresh import WriteFresh
from pgoutput_fast.spark.tasks.current.reduce import NetEffect, Place, ReduceChanges
from pgoutput_fast.spark.tasks.current.rewrite import RewriteFiles, Rewritten
from pgoutput_fast.spark.tasks.current.scratch import ordered
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.data_files import DataFile, Version, leading_bounds
from pgoutput_fast.tables.file_table import ChangedError, FileTable
from pgoutput_fast.tables.files import WrittenFile

__all__ = ["Merger"]

# Attempts to apply an effect if a concurrent change conflicts.
_TRIES = 10
# Bytes of new rows sorted by one task, approximately.
_FRESH_BYTES = 64 << 20
# Maximum number of tasks per core that rewrite files.
_TASKS_PER_CORE = 2


@dataclass
class _Work:
    """A stretch that is being applied to its table."""

    stretch: Stretch
    table: FileTable
    position: int
    before: Version | None
    identity: tuple[str, ...]
    schema: pa.Schema
    effects: tuple[NetEffect, ...] = ()

    @property
    def replaced(self) -> bool:
        """Whether all existing rows are removed."""
        return self.before is None or any(each.truncated for each in self.effects)

    @property
    def joined(self) -> list[int]:
        """The files to rewrite, even if none of their rows is removed."""
        assert self.before is not None
        return list(range(len(self.before.files))) if self.all_again else self.table.short(self.before)

    @property
    def all_again(self) -> bool:
        """Whether all files are rewritten, because the table gets wider columns."""
        return self.before is not None and self.table.all_again(self.before, self.schema)


class Merger:
    """Applies stretches to tables.

    Args:
        spark: the session.
        place: path or URI of the store with the current tables.
        scratch: the directory of files between jobs.
        file_bytes: approximate maximum size of a file.
    """

    def __init__(self, spark: SparkSession, place: str, scratch: str, file_bytes: int) -> None:
        self._spark, self._place, self._scratch, self._file_bytes = spark, place, scratch, file_bytes
        self._cores = cores_of(spark)

    def apply(
        self,
        stretches: Sequence[Stretch],
        tables: Mapping[str, tuple[FileTable, Place]],
        positions: Sequence[int],
    ) -> None:
        """Applies one stretch per table.

        Args:
            stretches: at most one per table.
            tables: {qualified name: the table, and its location}.
            positions: the resulting position of each table.

        Raises:
            ValueError: if a table cannot take its changes. It is unchanged; others may have theirs.
            RuntimeError: if concurrent changes of a table conflict repeatedly.
        """
        work = []
        for stretch, position in zip(stretches, positions, strict=True):
            table = tables[stretch.table][0]
            before = table.now()
            columns = stretch.columns
            schema = table.schema_with(before, columns)
            identity = stretch.key or tuple(name for name in columns.names if name != COMMIT_LSN)
            work.append(_Work(stretch, table, position, before, identity, schema))
        self._reduce(work, tables)
        for _ in range(_TRIES):
            work = self._merged(work)
            if not work:
                return
            for each in work:
                each.before = each.table.now()
        raise RuntimeError(
            f"something else changed {work[0].stretch.table} {_TRIES} times during a commit: let only one query or "
            "mirror write into it, and run OPTIMIZE and the like less often"
        )

    def _reduce(self, work: Sequence[_Work], tables: Mapping[str, tuple[FileTable, Place]]) -> None:
        jobs = [
            ReduceChanges(
                self._scratch,
                tables[each.stretch.table][1],
                each.stretch.key,
                each.identity,
                each.schema,
                pieces,
                each.before is None,
            )
            for each in work
            for pieces in groups_of(each.stretch.divided)
        ]
        effects: list[NetEffect] = run_jobs(self._spark, jobs)
        for each in work:
            each.effects = tuple(effect for effect in effects if effect.table == each.stretch.table)

    def _merged(self, work: Sequence[_Work]) -> list[_Work]:
        """Merges effects into the versions that were read. Returns those whose table was changed concurrently."""
        rewrites = [job for each in work for job in self._rewrites(each)]
        rewritten: list[Rewritten] = run_jobs(self._spark, rewrites)
        files: dict[str, list[WrittenFile]] = {each.stretch.table: [] for each in work}
        gone: dict[str, set[str]] = {each.stretch.table: set() for each in work}
        for done in rewritten:
            files[done.table] += done.added
            gone[done.table] |= set(done.removed)
        fresh = [job for each in work for job in self._fresh(each, rewritten)]
        for table, added in run_jobs(self._spark, fresh):
            files[table] += added
        again = []
        for each in work:
            name = each.stretch.table
            removed = None if each.replaced or each.all_again else gone[name]
            try:
                each.table.commit(each.before, each.schema, each.position, files[name], removed)
            except ChangedError:
                again.append(each)
                self._remove(files[name])
        return again

    def _remove(self, files: Sequence[WrittenFile]) -> None:
        store = open_store(self._place)
        for file in files:
            with suppress(Exception):
                store.remove(f"{file.directory}/{file.name}")

    # ---- files with rows to remove or change ---------------------------------------------------------------------

    def _rewrites(self, work: _Work) -> list[RewriteFiles]:
        before, key = work.before, work.stretch.key
        if work.replaced or before is None:
            return []
        bounds = leading_bounds(before, work.identity)
        short = work.joined
        looked = [k for k in self._candidates(work, bounds, work.identity[0]) if k not in set(short)]
        if not key:
            # Equal rows are copies: a single task counts how many of them were removed.
            goes = any(each.gone.rows for each in work.effects)
            parts = [looked + short] if goes or short else []
        elif work.all_again:
            parts = self._parts(before, short)
        else:
            parts = self._parts(before, looked) + ([short] if short else [])
        return [self._rewrite(work, part, bounds, set(short)) for part in parts]

    def _rewrite(
        self, work: _Work, part: Sequence[int], bounds: tuple[str, pa.Array, pa.Array] | None, short: set[int]
    ) -> RewriteFiles:
        assert work.before is not None
        files = [work.before.files[k] for k in part]
        if bounds is not None:
            chosen = pa.array(part, pa.int64())
            bounds = bounds[0], bounds[1].take(chosen), bounds[2].take(chosen)
        return RewriteFiles(
            work.stretch.table,
            self._place,
            work.table.files,
            self._file_bytes,
            work.stretch.key,
            work.identity,
            work.schema,
            tuple(files),
            bounds,
            frozenset(work.before.files[k].name for k in part if k in short),
            work.effects,
        )

    def _candidates(
        self, work: _Work, bounds: tuple[str, pa.Array, pa.Array] | None, first: str
    ) -> list[int]:
        """The files whose bounds include some of the keys, as far as the bounds of the effects tell."""
        assert work.before is not None
        pieces = [each.gone for each in work.effects]
        if work.stretch.key:
            pieces += [each.rows for each in work.effects]
        pieces = [each for each in pieces if each.rows]
        if not pieces:
            return []
        every = list(range(len(work.before.files)))
        if bounds is None or bounds[0] != first or pa.types.is_timestamp(bounds[1].type):
            return every
        ranges = [(low, high) for each in pieces for low, high in zip(*each.bounds, strict=True)]
        if not all(low.is_valid for low, _ in ranges):
            return every
        low, high = min(each.as_py() for each, _ in ranges), max(each.as_py() for _, each in ranges)
        behind, before = pc.greater(bounds[1], high), pc.less(bounds[2], low)
        out = pc.fill_null(pc.or_(behind, before), False).to_pylist()
        return [k for k in every if not out[k]]

    def _parts(self, before: Version, looked: Sequence[int]) -> list[list[int]]:
        """The files of each task: neighbours, with task sizes about equal."""
        if not looked:
            return []
        files: list[DataFile] = [before.files[k] for k in looked]
        most = sum(each.nbytes for each in files) / (_TASKS_PER_CORE * self._cores)
        parts: list[list[int]] = [[]]
        size = 0
        for k, file in zip(looked, files, strict=True):
            if parts[-1] and size + file.nbytes > most:
                parts.append([])
                size = 0
            parts[-1].append(k)
            size += file.nbytes
        return parts

    # ---- new rows ------------------------------------------------------------------------------------------------

    def _fresh(self, work: _Work, rewritten: Sequence[Rewritten]) -> list[WriteFresh]:
        done = [each for each in rewritten if each.table == work.stretch.table]
        placed = [b"".join(each.placed[k].tobytes() for each in done) for k in range(len(work.effects))]
        effects = [
            (effect, there)
            for effect, there in zip(work.effects, placed, strict=True)
            if len(there) // 8 < sum(effect.rows.rows)
        ]
        if not effects:
            return []
        kind = work.schema.field(work.identity[0]).type
        count = -(-sum(effect.rows.nbytes for effect, _ in effects) // _FRESH_BYTES)
        if count < 2:
            return [self._write(work, effects)]
        if not work.stretch.key or not ordered(kind):
            return [self._write(work, [each]) for each in effects]
        sample = pa.chunked_array([effect.sample for effect, _ in effects], kind).combine_chunks()
        sample = sample.take(pc.sort_indices(sample)).unique()
        cuts = sorted({len(sample) * n // count for n in range(1, count)} - {0})
        ends = [None, *(sample[k] for k in cuts), None]
        return [self._write(work, effects, low, high) for low, high in pairwise(ends)]

    def _write(
        self,
        work: _Work,
        effects: Sequence[tuple[NetEffect, bytes]],
        low: pa.Scalar | None = None,
        high: pa.Scalar | None = None,
    ) -> WriteFresh:
        return WriteFresh(
            work.stretch.table,
            self._place,
            work.table.files,
            self._file_bytes,
            work.stretch.key,
            work.identity,
            work.schema,
            tuple(effect for effect, _ in effects),
            tuple(there for _, there in effects),
            low,
            high,
        )
