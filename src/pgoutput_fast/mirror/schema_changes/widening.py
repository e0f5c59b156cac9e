"""Columns that became wider. ALTER TABLE writes their rows again, and the catalogs do not show with which values.

`ALTER COLUMN v TYPE bigint` and `ALTER COLUMN v TYPE bigint USING v * 2` leave the same catalogs. So a mirror follows
such a column only if its user states that the values stay (`trust_widening`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.mirror.schema_changes.fingerprint import (
    CatalogColumn,
    Fingerprint,
    Typed,
    is_packed,
    scale_and_precision,
)

__all__ = ["is_wider", "with_wider_columns", "with_wider_types"]

_NUMERIC = OID_OF_NAME["numeric"]
# Types that hold all values of those before them.
_LADDERS = [
    [OID_OF_NAME[name] for name in names]
    for names in (
        ("int2", "int4", "int8"),
        ("float4", "float8"),
        ("_int2", "_int4", "_int8"),
        ("_float4", "_float8"),
    )
]


def is_wider(before: Typed, now: Typed) -> bool:
    """Whether a type holds all values of another one, and ALTER TYPE writes the rows again.

    >>> from pgoutput_fast.catalog.relations import Column
    >>> is_wider(Column("id", 23), Column("id", 20)), is_wider(Column("id", 20), Column("id", 23))
    (True, False)
    """
    if before.type_oid == now.type_oid == _NUMERIC and -1 not in (before.typmod, now.typmod):
        scale, precision = scale_and_precision(before.typmod)
        scale_now, precision_now = scale_and_precision(now.typmod)
        return scale < scale_now and precision - scale <= precision_now - scale_now
    return any(
        before.type_oid in ladder and now.type_oid in ladder[ladder.index(before.type_oid) + 1 :]
        for ladder in _LADDERS
    )


def with_wider_types(
    before: Mapping[str, CatalogColumn], now: Mapping[str, CatalogColumn]
) -> dict[str, CatalogColumn]:
    """Columns with the types that they have now, if these are wider."""
    return {name: now[name] if _is_widened(each, now.get(name)) else each for name, each in before.items()}


def with_wider_columns(before: Fingerprint, now: Fingerprint) -> Fingerprint:
    """A fingerprint as it would be if its columns had been as wide as they are now.

    Its rows were not written again either then. If ALTER TABLE may have written them for another reason, too, because
    it altered another column, the result is `before`.
    """
    columns = with_wider_types(before.columns, now.columns)
    if columns == before.columns:
        return before
    for name, each in now.columns.items():
        known = columns.get(name)
        # Rows that are written again have the values that only the catalogs had before. Whether a new column had one,
        # nobody knows then.
        if known is None:
            if not each.is_missing:
                return before
        elif known.xmin != each.xmin:
            if not is_packed(known, each):
                return before
            columns[name] = each
    leaves = {
        oid: replace(leaf, filenode=now.leaves[oid].filenode) if oid in now.leaves else leaf
        for oid, leaf in before.leaves.items()
    }
    return replace(
        before,
        columns=columns,
        filenode=now.filenode,
        toast=now.toast,
        leaves=leaves,
        horizon=now.horizon,
    )


def _is_widened(before: CatalogColumn, now: CatalogColumn | None) -> bool:
    return now is not None and before.number == now.number and is_wider(before, now)
