"""New versions of a relation: whether a current table can take their changes, and with which columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.mirror.schema_changes.fingerprint import CatalogColumn, columns_differ
from pgoutput_fast.mirror.state.mirror_state import KnownColumn, TableRecord

__all__ = ["columns_of"]


def columns_of(
    record: TableRecord,
    relation: Relation,
    columns: pa.Schema,
    existing: Collection[str],
    columns_now: Callable[[int], Mapping[str, CatalogColumn]],
    *,
    is_first: bool,
) -> dict[str, KnownColumn] | str:
    """The columns of a relation, if a table can take changes of this version; otherwise why it must be loaded first.

    Args:
        record: the state of the table.
        relation: the version.
        columns: its columns.
        existing: the names of the current table's columns.
        columns_now: {name: column} of the relation with an oid, as the server has it now.
        is_first: whether this process has taken no version before.
    """
    if relation.oid != record.oid:
        return "the server has another table of this name now"
    known = dict(record.columns)
    for each in columns:
        if each.name in known and known[each.name].type != str(each.type):
            return f"the type of its column {each.name!r} has changed"
    new = [each for each in columns if each.name not in known]
    is_asked = new or not is_first or not _is_known(relation, record)
    now = columns_now(relation.oid) if is_asked else {}
    for each in columns:
        number = known[each.name].number if each.name in known else None
        if number is not None and each.name in now and number != now[each.name].number:
            return f"its column {each.name!r} was renamed, or added again"
    if record.fingerprint is not None:
        sent = {name: replace(each, is_published=True) for name, each in now.items() if name in columns.names}
        if (why := columns_differ(record.fingerprint.columns, sent)) is not None:
            return why
    for each in new:
        found = now.get(each.name)
        if found is None or each.name in existing or not _is_added(found, known):
            return f"its column {each.name!r} was renamed, or added again"
        if found.is_filled:
            return f"its new column {each.name!r} has values in old rows, which the stream does not have"
    kept = {each.name: known[each.name] for each in columns if each.name in known}
    return kept | {each.name: KnownColumn(now[each.name].number, str(each.type)) for each in new}


def _is_known(relation: Relation, record: TableRecord) -> bool:
    """Whether the columns are those of the catalogs at the last check."""
    known = {} if record.fingerprint is None else record.fingerprint.columns
    return all(
        each.name in known
        and known[each.name].is_published
        and (known[each.name].type_oid, known[each.name].typmod) == (each.type_oid, each.typmod)
        for each in relation.columns
    )


def _is_added(column: CatalogColumn, known: Mapping[str, KnownColumn]) -> bool:
    """Whether a column is new, and not an existing one under another name."""
    numbers = [each.number for each in known.values()]
    return None not in numbers and column.number not in numbers
