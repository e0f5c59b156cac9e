"""Checks whether a current table can follow changes of its relation, as far as the stream describes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.schema.metadata_columns import metadata_names
from pgoutput_fast.spark.current.remedies import LOAD_AGAIN

__all__ = ["check_names", "check_versions"]

_METADATA = metadata_names("_")


def check_versions(
    table: str, versions: Iterable[int], catalog: Catalog, there: Collection[str] | None, oid: int | None
) -> int:
    """Checks the relation versions of changes.

    Args:
        table: the table's qualified name.
        versions: the versions of the changes.
        catalog: all versions, in the order of arrival.
        there: the table's columns; None if there is no table.
        oid: the oid of the relation that the table has followed. None if unknown: then an existing table is assumed to
            be that of the first version.

    Returns:
        the oid of the relation.

    Raises:
        ValueError: if the table must be loaded again.
    """
    wanted = set(versions)
    known = [each for each in catalog.relations if each.qualified_name == table]
    if oid is None and there is not None:
        oid = known[0].oid
    for place, relation in enumerate(known):
        if relation.version not in wanted:
            continue
        names = {column.name for column in relation.columns}
        taken = sorted(names & _METADATA)
        if taken:
            raise ValueError(
                f"{table}: its column {taken[0]!r} has the name of a metadata column: rename the column. {LOAD_AGAIN}"
            )
        if oid is not None and relation.oid != oid:
            raise ValueError(f"{table}: the server has another table of this name now. {LOAD_AGAIN}")
        oid = relation.oid
        new = set() if there is None else names - set(there)
        if new and place and _is_renamed(known[:place], relation):
            raise ValueError(
                f"{table}: its column {min(new)!r} was renamed, or took the place of another. {LOAD_AGAIN}"
            )
    assert oid is not None
    return oid


def check_names(table: str, versions: Iterable[int], catalog: Catalog, oids: Mapping[str, int]) -> None:
    """Checks that a table without rows did not have another name before: its rows would be under the other name.

    Args:
        table: the table's qualified name.
        versions: the versions of its changes.
        catalog: all versions, in the order of arrival.
        oids: {qualified name: the oid of the relation} of the replicated tables.

    Raises:
        ValueError: if it had.
    """
    wanted = set(versions)
    own = {each.oid for each in catalog.relations if each.version in wanted}
    if oids.get(table) in own:
        return
    before = [name for name, oid in oids.items() if oid in own]
    for each in catalog.relations:
        if each.version in wanted:
            break
        if each.oid in own and each.qualified_name != table:
            before.append(each.qualified_name)
    if before:
        raise ValueError(
            f"{table} had the name {before[-1]} before, and has rows from that time: its current table would begin in "
            "the middle. Let a Mirror load the target (with these segments and this slot: segments=, adopt=True), or "
            "leave the table out with tables="
        )


def _is_renamed(before: list[Relation], relation: Relation) -> bool:
    """Whether a version adds some columns and lacks others, compared with the previous one."""
    names = {column.name for column in relation.columns}
    there = {column.name for column in before[-1].columns}
    return bool(names - there) and bool(there - names)
