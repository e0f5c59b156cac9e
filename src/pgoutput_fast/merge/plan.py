"""Plans the merge of effects into a version of a table: units of work, in two steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.merge.search import Numbers
from pgoutput_fast.merge.stored_effect import StoredEffect, is_ordered
from pgoutput_fast.merge.units import MergedTable, NewRowsUnit, RewriteUnit, UnitResult
from pgoutput_fast.tables.data_files import by_bounds, has_bounds, part_of
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.joining import to_join
from pgoutput_fast.tables.table import Version

__all__ = ["MergePlan"]

# Bytes of new rows sorted by one unit, approximately.
_NEW_ROWS_BYTES = 64 << 20
# A unit gets the bounds of so many columns. A row without a key is identified by all of its columns.
_BOUNDED_COLUMNS = 3


@dataclass(frozen=True)
class MergePlan:
    """The merge of effects into a version of a table.

    First run the units of `rewrites`, then those of `new_rows`. Then commit the new files, remove those of `removed`,
    and mark the rows of `deleted`.

    Attributes:
        table: the table.
        before: the version; None if there is no table.
        key: the columns of the key.
        identity: the columns that identify a row.
        schema: the columns of the table after the effects.
        effects: the effects. Each concerns other keys.
        units: about how many units run at the same time. A single one runs in this process.
        uncommitted: the names of files of `before` that the same commit adds. In them, no rows can be marked.
    """

    table: CurrentFileTable
    before: Version | None
    key: tuple[str, ...]
    identity: tuple[str, ...]
    schema: pa.Schema
    effects: tuple[StoredEffect, ...]
    units: int = 1
    uncommitted: frozenset[str] = frozenset()

    @cached_property
    def rewrites(self) -> list[RewriteUnit]:
        """The units of the first step."""
        if self.before is None or self._replaces_all:
            return []
        joined: Sequence[int] = ()
        if self._rewrites_all:
            joined = range(len(self.before.files))
        elif not self.table.marks:  # or else `compaction` does it, after the commit
            joined = to_join(self.before, self.table.file_bytes, partial(by_bounds, self.before))
        excluded = set(joined)
        changed = [k for k in self._candidates(self.before) if k not in excluded]
        if self.units == 1 or not self.key:
            # Equal rows are copies: one unit counts how many of them were removed.
            parts = [[*changed, *joined]]
        elif self._rewrites_all:
            parts = self._parts(self.before, joined)
        else:
            parts = [*self._parts(self.before, changed), list(joined)]
        # Without a key, a removed row that no file has is an error, which a unit raises.
        removes = not self.key and any(sum(effect.gone.counts) for effect in self.effects)
        parts = [part for part in parts if part or removes]
        adds = len(parts) == 1 and self._count(self.effects) < 2
        return [self._rewrite(self.before, part, excluded, adds) for part in parts]

    def new_rows(self, results: Sequence[UnitResult]) -> list[NewRowsUnit]:
        """The units of the second step.

        Args:
            results: of the first one.
        """
        placed: list[Numbers] = []
        for k, effect in enumerate(self.effects):
            parts = [np.arange(effect.count) if each.placed is None else each.placed[k] for each in results]
            placed.append(np.sort(np.concatenate([np.empty(0, np.int64), *parts])))
        left = [
            (effect, numbers)
            for effect, numbers in zip(self.effects, placed, strict=True)
            if len(numbers) < effect.count
        ]
        if not left:
            return []
        effects, numbers = tuple(zip(*left, strict=True))
        count = self._count(effects)
        if count > 1 and not (self.key and is_ordered(self.schema.field(self.identity[0]).type)):
            return [NewRowsUnit(self._merged_table, (effect,), (old,)) for effect, old in left]
        return [
            NewRowsUnit(self._merged_table, effects, numbers, low, high)
            for low, high in self._ranges(effects, count)
        ]

    def removed(self, results: Sequence[UnitResult]) -> Collection[str] | None:
        """The names of the files that the new ones replace; None for all.

        Args:
            results: of the first step.
        """
        if self._replaces_all or self._rewrites_all:
            return None
        return {name for result in results for name in result.removed}

    def deleted(self, results: Sequence[UnitResult]) -> dict[str, Numbers]:
        """{name of a file that stays: the positions of the rows that are marked deleted}.

        Args:
            results: of the first step.
        """
        return {name: rows for result in results for name, rows in result.deleted.items()}

    @property
    def _replaces_all(self) -> bool:
        """Whether all existing rows are removed."""
        return self.before is None or any(effect.truncated for effect in self.effects)

    @cached_property
    def _rewrites_all(self) -> bool:
        """Whether all files are rewritten, because the table gets wider columns."""
        return self.before is not None and self.table.all_again(self.before, self.schema)

    @cached_property
    def _merged_table(self) -> MergedTable:
        return MergedTable(str(self.table), self.table.files, self.key, self.identity, self.schema)

    def _rewrite(
        self, before: Version, part: Sequence[int], joined: Collection[int], adds: bool
    ) -> RewriteUnit:
        bounded = islice((name for name in self.identity if has_bounds(before, name)), _BOUNDED_COLUMNS)
        version = part_of(before, part, list(bounded))
        names = frozenset(before.files[k].name for k in part if k in joined)
        marked = frozenset(version.names - self.uncommitted if self.table.marks else ())
        return RewriteUnit(self._merged_table, version, names, self.effects, adds, marked)

    def _candidates(self, before: Version) -> list[int]:
        """The files that may have rows to remove, as far as the bounds of the effects tell.

        A unit looks at the rows themselves.
        """
        batches = [effect.gone for effect in self.effects]
        if self.key:
            batches += [effect.rows for effect in self.effects]
        batches = [each for each in batches if sum(each.counts)]
        if not batches:
            return []
        every, column = list(range(len(before.files))), self.identity[0]
        if not has_bounds(before, column) or pa.types.is_timestamp(before.schema.field(column).type):
            return every
        if any(bounds.null_count for each in batches for bounds in each.bounds):
            return every
        lows, highs = before.bounds(column)
        # No Python values: Python lacks some dates of a server.
        low = pc.min(pa.chunked_array([each.bounds[0] for each in batches]))
        high = pc.max(pa.chunked_array([each.bounds[1] for each in batches]))
        outside = pc.fill_null(pc.or_(pc.greater(lows, high), pc.less(highs, low)), False).to_pylist()
        return [k for k in every if not outside[k]]

    def _parts(self, before: Version, files: Sequence[int]) -> list[list[int]]:
        """The files of each unit: neighbours, with sizes about equal."""
        most = sum(before.files[k].nbytes for k in files) / self.units
        parts: list[list[int]] = [[]]
        size = 0
        for k in files:
            nbytes = before.files[k].nbytes
            if parts[-1] and size + nbytes > most:
                parts.append([])
                size = 0
            parts[-1].append(k)
            size += nbytes
        return parts

    # ---- new rows ------------------------------------------------------------------------------------------------

    def _count(self, effects: Sequence[StoredEffect]) -> int:
        """About how many units write the new rows."""
        nbytes = sum(effect.rows.nbytes for effect in effects)
        return 1 if self.units == 1 else -(-nbytes // _NEW_ROWS_BYTES)

    def _ranges(
        self, effects: Sequence[StoredEffect], count: int
    ) -> list[tuple[pa.Array | None, pa.Array | None]]:
        """The bounds of the new rows of each unit, as in `NewRowsUnit`."""
        if count < 2:
            return [(None, None)]
        kind = self.schema.field(self.identity[0]).type
        sample = pa.chunked_array([effect.sample.cast(kind) for effect in effects], kind).combine_chunks()
        sample = sample.take(pc.sort_indices(sample)).unique()
        cuts = sorted({len(sample) * n // count for n in range(1, count)} - {0})
        return list(pairwise([None, *(sample.take(pa.array([k])) for k in cuts), None]))
