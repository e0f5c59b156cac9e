"""Fingerprints of published tables in the server's catalogs, and whether two of them stand for the same rows.

The stream has no DDL. So a mirror compares the catalogs with their state at the load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.postgres.publications import OPERATIONS

__all__ = [
    "LACKING",
    "NAMED",
    "CatalogColumn",
    "Fingerprint",
    "Leaf",
    "RowQuestion",
    "Typed",
    "columns_differ",
    "columns_lost",
    "difference",
    "is_only_repacked",
    "is_packed",
    "is_same_type",
    "lacking",
    "row_questions",
    "scale_and_precision",
]

LACKING = "its publications do not publish every operation: "
"""Prefix of the reason why such a table is stopped. It is loaded once all operations are published again."""

NAMED = "named "
"""Prefix of an entry of `members` if a publication names the table itself."""

_TEXT, _VARCHAR, _NUMERIC = (OID_OF_NAME[name] for name in ("text", "varchar", "numeric"))
# Their modifier is a largest length or precision; without one, all values fit.
_LIMITED = {OID_OF_NAME[name] for name in ("varbit", "time", "timetz", "timestamp", "timestamptz")}


@dataclass(frozen=True)
class CatalogColumn:
    """A column as the server's catalog has it.

    Attributes:
        number: its number in the table, which survives a rename.
        type_oid, typmod: its type.
        is_filled: whether rows may have values that no statement wrote: the column has a default, or the catalog keeps
            a value for rows of the table, or of a partition, that are older than the column.
        is_missing: whether the catalog keeps such a value for rows of the table itself.
        xmin: the transaction that last changed this entry of the catalog.
        is_published: whether the publications send it.
        missing: the value that `is_missing` tells of, as text; None if there is none, or if it cannot be read. It stays
            the same until the rows of the table are written again.
    """

    number: int
    type_oid: int
    typmod: int
    is_filled: bool
    is_missing: bool
    xmin: int
    is_published: bool = True
    missing: str | None = None


@dataclass(frozen=True)
class Leaf:
    """A leaf partition, whose changes are published as those of its root.

    Attributes:
        name: its qualified name, quoted as in SQL.
        filenode: its file; a new one after TRUNCATE and every rewrite.
        links: the transactions that attached it and the partitions between it and the root, from the root on.
        is_born: whether it provably never had rows outside the root.
        written, repack: as in `Fingerprint`.
    """

    name: str
    filenode: int
    links: Sequence[int]
    # A later ALTER TABLE removes the proof. That changes no row.
    is_born: bool = field(default=False, compare=False)
    written: int = field(default=0, compare=False)
    repack: int = 0


@dataclass(frozen=True)
class Fingerprint:
    """The state of a published table in the catalogs.

    Attributes:
        oid: of the relation.
        filenode: its file; a new one after TRUNCATE and every rewrite. 0 for a table with partitions.
        toast: oid of its TOAST table, 0 for none. ALTER TABLE and REPACK (CONCURRENTLY) make a new one when they
            rewrite the table; VACUUM FULL, CLUSTER and TRUNCATE do not.
        columns: by name, also those that are not published.
        filters: the row filters of the publications; empty if one of them sends all rows. None while a lock on the
            table prevents reading them.
        operations: what is published: insert, update, delete, truncate.
        members: the entries of the catalog that make it published, each with the transaction that last changed it.
        leaves: its partitions, by oid as text, if it is published as a root.
        types: the parts of enums and composites of its columns, by oid as text.
        horizon: all transactions before this one have ended: their rows exist already, or never will.
        written: the transaction that last changed its entry in pg_class.
        repack: the transaction of a REPACK (CONCURRENTLY) that had locked the table before these catalogs were read; 0
            for none. Until it ends, no other transaction can alter the table.
        natts: the largest number that a column ever had; 0 if unknown.
    """

    oid: int
    filenode: int
    toast: int
    columns: Mapping[str, CatalogColumn]
    filters: Sequence[str] | None
    operations: Sequence[str]
    members: Sequence[str]
    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    types: Mapping[str, Sequence[str]] = field(default_factory=dict)
    horizon: int = 0
    written: int = field(default=0, compare=False)
    repack: int = 0
    natts: int = 0

    @property
    def stays_logged(self) -> bool:
        """Whether the server refuses SET UNLOGGED, as long as the table has the same `members`, and sends TRUNCATE."""
        return any(each.startswith(NAMED) for each in self.members) and "truncate" in self.operations

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fingerprint:
        """The inverse of `dataclasses.asdict`, also after JSON.

        Raises:
            KeyError, TypeError: if the values are not a fingerprint.
        """
        lists = {name: tuple(values[name]) for name in ("filters", "operations", "members")}
        columns = {name: CatalogColumn(**each) for name, each in values["columns"].items()}
        leaves = {
            oid: Leaf(**{**each, "links": tuple(each["links"])}) for oid, each in values["leaves"].items()
        }
        types = {oid: tuple(each) for oid, each in values["types"].items()}
        return cls(**{**values, **lists, "columns": columns, "leaves": leaves, "types": types})

    def with_dropped_columns(self, before: Fingerprint) -> Fingerprint:
        """Adds the dropped columns of `before`, which the current table still has.

        If only the horizon differs, the result is `before`: equal catalogs give equal values.
        """
        numbers = {each.number for each in self.columns.values()}
        dropped = {
            name: each
            for name, each in before.columns.items()
            if name not in self.columns and each.number not in numbers
        }
        found = replace(self, columns={**dropped, **self.columns})
        return before if found == replace(before, horizon=self.horizon) else found


@dataclass(frozen=True)
class RowQuestion:
    """A question that only the rows of a partition answer: whether the mirror has the same rows.

    Attributes:
        leaf: the partition.
        xid: asks whether the partition, which has a new file, has a row of an earlier transaction. If not, it was
            truncated, and the mirror has too many rows. None asks whether an attached partition has any row: rows from
            before are missing in the mirror, and may be of younger transactions than the one that attached it.
    """

    leaf: Leaf
    xid: int | None

    @property
    def is_of_attached(self) -> bool:
        """Whether it asks about an attached partition."""
        return self.xid is None

    def why(self, is_row_there: bool | None) -> str | None:
        """Why the table must be loaded; None if it need not.

        Args:
            is_row_there: whether the partition has such a row; None if unknown.
        """
        if self.is_of_attached and is_row_there is not False:
            return f"its partition {self.leaf.name} may have had rows before it was attached"
        if not self.is_of_attached and not is_row_there:
            return (
                f"its partition {self.leaf.name} was truncated or rewritten, which the server does not send"
            )
        return None


def lacking(operations: Sequence[str], now: Fingerprint) -> str | None:
    """Why a table whose changes are not all published cannot be mirrored; None if they are.

    Args:
        operations: those that must be published.
        now: the fingerprint of the table.
    """
    names = ", ".join(each for each in operations if each not in now.operations)
    return (
        f"{LACKING}no {names}. Run ALTER PUBLICATION ... SET (publish = '{', '.join(OPERATIONS)}')"
        if names
        else None
    )


def difference(before: Fingerprint, now: Fingerprint) -> str | None:
    """Why rows taken before may differ from the server's rows now; None if they do not.

    `row_questions` covers the cases that catalogs alone do not decide.
    """
    if before.oid != now.oid:
        return "the server has another table of this name now"
    if not set(before.members) <= set(now.members):
        return "its publication was altered, or did not publish it for a while"
    if before.filters != now.filters:
        return "its row filter has changed"
    return (
        columns_differ(before.columns, now.columns, before.natts)
        or _rewritten(before, now)
        or _types_differ(before.types, now.types)
        or _leaves_differ(before.leaves, now.leaves)
    )


def columns_differ(
    before: Mapping[str, CatalogColumn], now: Mapping[str, CatalogColumn], natts: int
) -> str | None:
    """Why rows taken before may have other values in a column; None if they do not.

    Args:
        before, now: the columns.
        natts: the largest number that a column ever had before; 0 if unknown.
    """
    names = {each.number: name for name, each in before.items()}
    renamed = _renamed(before, now)
    for name, column in now.items():
        if not column.is_published:
            continue
        known = before.get(renamed.get(name, name))
        if known is None:
            if column.number in names or _is_gap(natts, now, column.number):
                return f"its column {name!r} was renamed, or added again"
            if column.is_filled and column.missing is None:
                return _lost(name)
            continue
        if known.number != column.number:
            return f"its column {name!r} was renamed, or added again"
        if not known.is_published:
            return f"its column {name!r} was not published before"
        if not is_same_type(known, column):
            return f"the type of its column {name!r} has changed"
    return None


def columns_lost(
    before: Mapping[str, CatalogColumn], now: Mapping[str, CatalogColumn], taken: Collection[str]
) -> str | None:
    """Why nobody can give old rows their value in a new column; None if there is no such column.

    Args:
        before, now: the columns.
        taken: the names of those that the table has.
    """
    for name, column in now.items():
        is_new = column.is_published and name in before and name not in taken
        if is_new and is_packed(before[name], column):
            return _lost(name)
    return None


def _lost(name: str) -> str:
    return f"its new column {name!r} has values in old rows, which the stream does not have"


def _renamed(before: Mapping[str, CatalogColumn], now: Mapping[str, CatalogColumn]) -> dict[str, str]:
    """{new name: old name} of a column, if it was renamed and no other column was altered. Otherwise empty."""
    names = {each.number: name for name, each in before.items()}
    altered = [name for name, each in now.items() if name not in before or before[name].xmin != each.xmin]
    if len(altered) != 1 or altered[0] in before or now[altered[0]].number not in names:
        return {}
    return {altered[0]: names[now[altered[0]].number]}


def _is_gap(natts: int, now: Mapping[str, CatalogColumn], number: int) -> bool:
    """Whether a new column is gone that came before this one, and changes may have had under the same name."""
    numbers = {each.number for each in now.values()}
    return natts > 0 and not numbers.issuperset(range(natts + 1, number))


class Typed(Protocol):
    """A type with its modifier."""

    @property
    def type_oid(self) -> int: ...

    @property
    def typmod(self) -> int: ...


def is_same_type(before: Typed, now: Typed) -> bool:
    """Whether ALTER TYPE keeps all values without writing the rows again, as when a varchar becomes longer, or text.

    If it has written them again, values may differ (`USING`), and `_rewritten` finds it.
    """
    if (before.type_oid, before.typmod) == (now.type_oid, now.typmod):
        return True
    types = {before.type_oid, now.type_oid}
    if types == {_NUMERIC}:
        return _is_more_precise(before.typmod, now.typmod)
    if not (types <= {_TEXT, _VARCHAR} or (len(types) == 1 and types <= _LIMITED)):
        return False
    return now.typmod == -1 or -1 < before.typmod <= now.typmod


def _is_more_precise(before: int, now: int) -> bool:
    """Whether the modifier of a numeric gets a larger precision with the same scale."""
    (scale, precision), (scale_now, precision_now) = map(scale_and_precision, (before, now))
    return -1 not in (before, now) and scale == scale_now and precision <= precision_now


def scale_and_precision(typmod: int) -> tuple[int, int]:
    """(scale, precision) of the modifier of a numeric. The scale is a signed number of 11 bits.

    >>> scale_and_precision((8 << 16 | 2) + 4), scale_and_precision((5 << 16 | 2046) + 4)
    ((2, 8), (-2, 5))
    """
    precision, scale = divmod(typmod - 4, 1 << 16)
    return ((scale & 2047) ^ 1024) - 1024, precision


def is_only_repacked(before: Fingerprint | Leaf, now: Fingerprint | Leaf) -> bool:
    """Whether nothing but a REPACK (CONCURRENTLY), seen while it ran, has rewritten a table."""
    return before.repack != 0 and before.repack == now.written


def _rewritten(before: Fingerprint, now: Fingerprint) -> str | None:
    """Why ALTER TABLE may have rewritten the rows; None if it has not."""
    is_other_toast = before.toast != 0 and now.toast != 0 and before.toast != now.toast
    is_repacked = is_only_repacked(before, now)
    if is_other_toast and not is_repacked and not before.stays_logged:
        return "its rows were rewritten by ALTER TABLE"
    files = {before.filenode: now.filenode}
    files |= {
        each.filenode: now.leaves[oid].filenode for oid, each in before.leaves.items() if oid in now.leaves
    }
    # VACUUM FULL, CLUSTER and TRUNCATE leave the columns as they are. TRUNCATE is in the stream.
    if all(old == new for old, new in files.items()):
        return None
    known = {each.number: each for each in before.columns.values()}
    for each in now.columns.values():
        old = known.get(each.number)
        # VACUUM FULL writes the value from the catalog into the rows. So does ALTER TABLE, and only its new TOAST table
        # tells the two apart.
        is_packable = is_repacked or (before.toast != 0 and before.toast == now.toast)
        if old is None or (old.xmin != each.xmin and not (is_packable and is_packed(old, each))):
            return "its rows were rewritten, and its columns were altered"
    return None


def is_packed(before: CatalogColumn, now: CatalogColumn) -> bool:
    """Whether rows have got the values of a column that only the catalogs had."""
    return before.is_missing and not now.is_missing


def _types_differ(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> str | None:
    for oid, parts in before.items():
        kind, *rest = parts
        kind_now, *rest_now = now.get(oid, parts)
        # A new label changes no value.
        is_same = set(rest) <= set(rest_now) if kind == "enum" else rest == rest_now
        if kind != kind_now or not is_same:
            return "the type of one of its columns was altered with ALTER TYPE"
    return None


def _leaves_differ(before: Mapping[str, Leaf], now: Mapping[str, Leaf]) -> str | None:
    for oid, leaf in before.items():
        if oid not in now:
            return f"its partition {leaf.name} was detached or dropped, which the server does not send"
        if leaf.links != now[oid].links:
            return f"its partition {leaf.name} was detached, and attached again"
    return None


def row_questions(before: Fingerprint, now: Fingerprint) -> Iterator[RowQuestion]:
    """Questions that only the rows of partitions answer. Ask them if there is no `difference`."""
    for oid, leaf in now.leaves.items():
        known = before.leaves.get(oid)
        if known is None:
            if not leaf.is_born:
                yield RowQuestion(leaf, None)
        elif known.filenode != leaf.filenode and not is_only_repacked(known, leaf):
            yield RowQuestion(leaf, before.horizon)
