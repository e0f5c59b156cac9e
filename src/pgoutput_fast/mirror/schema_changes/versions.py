"""New versions of a relation: whether a current table can take their changes, and with which columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.mirror.schema_changes.fingerprint import (
    CatalogColumn,
    columns_differ,
    columns_lost,
    is_same_type,
)
from pgoutput_fast.mirror.schema_changes.widening import is_wider, with_wider_types
from pgoutput_fast.mirror.state.table_record import KnownColumn, TableRecord
from pgoutput_fast.schema.evolution import widen

__all__ = ["columns_of"]


def columns_of(
    record: TableRecord,
    relation: Relation,
    columns: pa.Schema,
    current: CurrentTable,
    columns_now: Callable[[int], Mapping[str, CatalogColumn]],
    first: tuple[int, int],
    is_known: bool,
    trusts_widening: bool,
) -> dict[str, KnownColumn] | str:
    """The columns of a relation, if a table can take changes of this version; otherwise why it must be loaded first.

    Args:
        record: the state of the table.
        relation: the version.
        columns: its columns.
        current: the current table.
        columns_now: {name: column} of the relation with an oid, as the server has it now.
        first: (LSN of the commit, ordinal) of the first change of this version.
        is_known: whether this process has taken a version before.
        trusts_widening: whether a column that became wider has the same values.

    Raises:
        ValueError: if the current table is damaged.
    """
    existing = current.schema()
    assert existing is not None
    if relation.oid != record.oid:
        return "the server has another table of this name now"
    known = dict(record.columns)
    for each in columns:
        is_other = each.name in known and known[each.name].type != str(each.type)
        if is_other and not (
            _is_same_type(each.name, relation, record, trusts_widening) and _fits(each, existing, current)
        ):
            return f"the type of its column {each.name!r} has changed"
    new = [each for each in columns if each.name not in known]
    is_asked = new or is_known or not _is_known(relation, record)
    now = columns_now(relation.oid) if is_asked else {}
    for each in columns:
        number = known[each.name].number if each.name in known else None
        if number is not None and each.name in now and number != now[each.name].number:
            return f"its column {each.name!r} was renamed, or added again"
    if (why := _out_of_order(columns, known, now)) is not None:
        return why
    if record.fingerprint is not None:
        sent = {name: replace(each, is_published=name in columns.names) for name, each in now.items()}
        known_columns, natts = record.fingerprint.columns, record.fingerprint.natts
        lost = columns_lost(known_columns, sent, known)
        known_columns = with_wider_types(known_columns, now) if trusts_widening else known_columns
        if (why := lost or columns_differ(known_columns, sent, natts)) is not None:
            return why
    former = {each.name: _former(each, relation, record, now) for each in new} if len(new) == 1 else {}
    for each in new:
        found = now.get(each.name)
        is_clear = found is not None and (former.get(each.name) is not None or _is_added(found, known))
        if found is None or each.name in existing.names or not is_clear:
            return f"its column {each.name!r} was renamed, or added again"
        if former.get(each.name) is None and found.is_filled and found.missing is None:
            return f"its new column {each.name!r} has values in old rows, which the stream does not have"
    kept = {
        each.name: replace(known[each.name], type=str(each.type)) for each in columns if each.name in known
    }
    return kept | {
        each.name: _new_column(now[each.name], str(each.type), first, former.get(each.name)) for each in new
    }


def _new_column(now: CatalogColumn, kind: str, first: tuple[int, int], former: str | None) -> KnownColumn:
    return KnownColumn(now.number, kind, first, now.missing if former is None else None, former)


def _former(
    column: pa.Field, relation: Relation, record: TableRecord, now: Mapping[str, CatalogColumn]
) -> str | None:
    """The name under which the table knows a column that was renamed. None if it was not, or in doubt.

    A change may have been sent while columns had other names than now. But if no other column was altered since the
    last check, and the columns are in the order of their numbers, only one can have been renamed.
    """
    found, checked = now.get(column.name), record.fingerprint
    names = [
        name for name, each in record.columns.items() if found is not None and each.number == found.number
    ]
    if found is None or checked is None or len(names) != 1:
        return None
    known = checked.columns
    altered = {name for name, each in now.items() if name not in known or known[name].xmin != each.xmin}
    sent = next(each for each in relation.columns if each.name == column.name)
    is_same = (sent.type_oid, sent.typmod) == (found.type_oid, found.typmod)
    is_same = is_same and record.columns[names[0]].type == str(column.type)
    return names[0] if altered <= {column.name} and is_same else None


def _out_of_order(
    columns: pa.Schema, known: Mapping[str, KnownColumn], now: Mapping[str, CatalogColumn]
) -> str | None:
    """Why a version is one of other columns than those that have these names now; None if it is not.

    A server sends columns by their numbers. So columns that had other names meanwhile are not in order.
    """
    last = 0
    for name in columns.names:
        number = known[name].number if name in known else now[name].number if name in now else None
        if number is None:
            continue
        if number <= last:
            return f"its column {name!r} was renamed, or added again"
        last = number
    return None


def _is_known(relation: Relation, record: TableRecord) -> bool:
    """Whether the columns are those of the catalogs at the last check."""
    known = {} if record.fingerprint is None else record.fingerprint.columns
    return all(
        each.name in known
        and known[each.name].is_published
        and (known[each.name].type_oid, known[each.name].typmod) == (each.type_oid, each.typmod)
        for each in relation.columns
    )


def _is_same_type(name: str, relation: Relation, record: TableRecord, trusts_widening: bool) -> bool:
    """Whether the values of a column are the same under the types of a version and of the last check.

    The version may be older than the check, or newer.
    """
    before = None if record.fingerprint is None else record.fingerprint.columns.get(name)
    sent = next(each for each in relation.columns if each.name == name)
    return before is not None and any(
        is_same_type(*pair) or (trusts_widening and is_wider(*pair))
        for pair in ((before, sent), (sent, before))
    )


def _fits(column: pa.Field, existing: pa.Schema, current: CurrentTable) -> bool:
    """Whether the current table can have the values of a column, if necessary in a wider type."""
    if column.name not in existing.names:
        return False
    before = existing.field(column.name).type
    wide = widen(before, column.type)
    return wide is not None and (wide.equals(before) or current.takes(before, wide))


def _is_added(column: CatalogColumn, known: Mapping[str, KnownColumn]) -> bool:
    """Whether a column is new, and not an existing one under another name."""
    numbers = [each.number for each in known.values()]
    return None not in numbers and column.number not in numbers
