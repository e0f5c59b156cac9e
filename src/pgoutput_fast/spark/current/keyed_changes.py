"""Groups divided changes: what is reduced in one task, and what is applied one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.merge.effect.schema import current_schema
from pgoutput_fast.merge.keys import check_key, key_of, unchecked_array
from pgoutput_fast.schema.evolution import widest
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.spark.current.remedies import LOAD_AGAIN
from pgoutput_fast.spark.tasks.current.batch_file import BatchFile
from pgoutput_fast.spark.tasks.current.divide import TRUNCATES, ShuffledChanges

__all__ = ["KeyedChanges", "changes_by_key", "check_keys", "groups_of"]

_METADATA = metadata_names("_")

Files = tuple[tuple[BatchFile, tuple[int, ...]], ...]


@dataclass(frozen=True)
class KeyedChanges:
    """Changes of one table under one key.

    Attributes:
        table: the table's qualified name.
        key: the columns of the key.
        divided: the changes.
        last: the LSN of the last commit.
    """

    table: str
    key: tuple[str, ...]
    divided: tuple[ShuffledChanges, ...]
    last: int

    @property
    def columns(self) -> pa.Schema:
        """The columns of a current table with these changes.

        Raises:
            ValueError: if a column has incompatible types.
        """
        schemas = {
            each.version: pa.schema([field for field in each.schema if field.name not in _METADATA])
            for each in self.divided
        }
        try:
            return current_schema(widest(list(schemas.values()), self.table))
        except ValueError as problem:
            raise ValueError(f"{problem}. {LOAD_AGAIN}") from None


def changes_by_key(table: str, divided: Sequence[ShuffledChanges], catalog: Catalog) -> list[KeyedChanges]:
    """The changes of a table by their keys, in the order of application.

    Raises:
        ValueError: if the key changed within a transaction that also changed rows, or if a key may identify other rows
            later.
    """
    relations = {each.version: each for each in catalog.relations}
    for version in {each.version for each in divided}:
        check_key(relations[version], catalog.types)
    keys = {version: key_of(each) for version, each in relations.items()}
    by_key: dict[tuple[str, ...], list[ShuffledChanges]] = {}
    for each in divided:
        by_key.setdefault(keys[each.version], []).append(each)
    ordered = sorted(by_key.items(), key=lambda item: min(each.commits[0] for each in item[1]))
    found: list[KeyedChanges] = []
    for key, parts in ordered:
        if found and min(each.commits[0] for each in parts) <= found[-1].last:
            raise ValueError(
                f"{table}: its replica identity was altered more than once in one batch, or in a transaction that "
                f"changed rows, too. Take fewer segments per batch (max_segments). If that does not help: {LOAD_AGAIN}"
            )
        found.append(KeyedChanges(table, key, tuple(parts), max(each.commits[1] for each in parts)))
    return found


def check_keys(changes: Sequence[KeyedChanges], before: Sequence[str] | None) -> None:
    """Checks that no array column is added to the key.

    Args:
        changes: of one table, in the order of application.
        before: the key columns before them; None if unknown.

    Raises:
        ValueError: if one is added.
    """
    for each in changes:
        if before is not None and (why := unchecked_array(each.columns, each.key, before)) is not None:
            raise ValueError(f"{each.table}: {why}. {LOAD_AGAIN}")
        before = each.key


def groups_of(divided: Iterable[ShuffledChanges]) -> list[Files]:
    """The changes of each reducing task: linked buckets, and the truncates."""
    divided = list(divided)
    root: dict[int, int] = {}

    def find(bucket: int) -> int:
        while root.setdefault(bucket, bucket) != bucket:
            root[bucket] = root[root[bucket]]
            bucket = root[bucket]
        return bucket

    for each in divided:
        for bucket in each.buckets:
            if bucket != TRUNCATES:
                find(bucket)
        for one, other in each.links:
            root[find(one)] = find(other)
    groups = sorted({find(bucket) for bucket in list(root)}) or [TRUNCATES]
    found = []
    for group in groups:
        files = []
        for each in divided:
            batches = tuple(
                k
                for k, bucket in enumerate(each.buckets)
                if bucket == TRUNCATES or (group != TRUNCATES and find(bucket) == group)
            )
            if batches:
                files.append((each.file, batches))
        found.append(tuple(files))
    return found
