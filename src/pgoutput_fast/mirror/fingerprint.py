"""What the server's catalogs say of a published table, as one value; and whether two of them have the same rows.

The stream has rows, but no DDL. So a mirror compares what the catalogs said at the load with what they say later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.postgres.publications import OPERATIONS

__all__ = [
    "LACKING",
    "NAMED",
    "CatalogColumn",
    "Doubt",
    "Fingerprint",
    "Leaf",
    "columns_differ",
    "difference",
    "doubts",
    "is_only_repacked",
    "lacking",
]

LACKING = "its publications do not publish every operation: "
"""How the reason begins why such a table is stopped. If they publish all of them again, it is loaded."""

NAMED = "named "
"""How an entry of `members` begins if a publication names the table itself."""

_TEXT, _VARCHAR = OID_OF_NAME["text"], OID_OF_NAME["varchar"]


@dataclass(frozen=True)
class CatalogColumn:
    """A column as the server's catalog has it.

    Attributes:
        number: its number in the table; it stays when the column is renamed.
        type_oid, typmod: its type.
        is_filled: whether rows may have values in it that nobody wrote: it has a default, or the catalog keeps a value
            for rows of the table, or of a partition, that are older than the column.
        is_missing: whether the catalog keeps such a value for rows of the table itself.
        xmin: the transaction that last changed this entry of the catalog.
        is_published: whether the publications send it.
    """

    number: int
    type_oid: int
    typmod: int
    is_filled: bool
    is_missing: bool
    xmin: int
    is_published: bool = True


@dataclass(frozen=True)
class Leaf:
    """A partition with rows whose changes come as those of its root.

    Attributes:
        name: its qualified name, quoted as in SQL.
        filenode: its file; another one after TRUNCATE and after each rewrite.
        links: the transactions that attached it, and what is between it and the root, from the root on.
        is_born: whether it is proved that it never had a row that was not one of the root.
        written, repack: as those of a `Fingerprint`.
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
    """What the catalogs say of a published table.

    Attributes:
        oid: of the relation.
        filenode: its file; another one after TRUNCATE and after each rewrite. 0 for a table with partitions.
        toast: oid of its TOAST table, 0 for none. ALTER TABLE makes another one when it rewrites the table, and so does
            REPACK (CONCURRENTLY); VACUUM FULL, CLUSTER and TRUNCATE do not.
        columns: by name, also those that are not published.
        filters: the row filters of the publications; empty if one of them sends all rows. None while somebody has
            locked the table: nobody can read them then.
        operations: what is published: insert, update, delete, truncate.
        members: the entries of the catalog that make it published, each with the transaction that last changed it.
        leaves: its partitions, by oid as text, if it is published as a root.
        types: what enums and composites of its columns consist of, by oid as text.
        horizon: rows of transactions before this one were there already, or will never be.
        written: the transaction that last changed its entry in pg_class.
        repack: the transaction of a REPACK (CONCURRENTLY) that had locked the table before these catalogs were read; 0
            for none. Until it ends, no other transaction can alter the table.
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

    @property
    def stays_logged(self) -> bool:
        """Whether the server refuses SET UNLOGGED, as long as the table has the same `members`, and sends TRUNCATE."""
        return any(each.startswith(NAMED) for each in self.members) and "truncate" in self.operations

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fingerprint:
        """The inverse of `dataclasses.asdict`, also behind JSON.

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

    def behind(self, before: Fingerprint) -> Fingerprint:
        """The same, with the columns of `before` that were dropped: the current table still has them.

        The horizon stays, so that two looks at the same catalogs give the same value.
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
class Doubt:
    """A question about the rows of a partition: only they tell whether the mirror has them.

    Attributes:
        leaf: the partition.
        xid: whether the partition has a row of an earlier transaction. If not, it was truncated, and the mirror has
            rows too many: it has another file. None: whether it has any row. It was attached, and rows that it had
            before are missing in the mirror. Their transactions may be younger than the one that attached it.
    """

    leaf: Leaf
    xid: int | None

    def why(self, is_row_there: bool | None) -> str | None:
        """Why the table must be loaded; None if it need not.

        Args:
            is_row_there: whether the partition has such a row; None if nobody knows.
        """
        if self.xid is None and is_row_there is not False:
            return f"its partition {self.leaf.name} may have had rows before it was attached"
        if self.xid is not None and not is_row_there:
            return (
                f"its partition {self.leaf.name} was truncated or rewritten, which the server does not send"
            )
        return None


def lacking(operations: Sequence[str], now: Fingerprint) -> str | None:
    """Why a table cannot be mirrored whose changes are not all published; None if they are.

    Args:
        operations: those that must be published.
        now: of the table.
    """
    names = ", ".join(each for each in operations if each not in now.operations)
    return (
        f"{LACKING}no {names}. Run ALTER PUBLICATION ... SET (publish = '{', '.join(OPERATIONS)}')"
        if names
        else None
    )


def difference(before: Fingerprint, now: Fingerprint) -> str | None:
    """Why rows that came before may differ from those of the server now; None if they do not.

    `doubts` has what catalogs alone do not tell.
    """
    if before.oid != now.oid:
        return "the server has another table of this name now"
    if not set(before.members) <= set(now.members):
        return "its publication was altered, or did not publish it for a while"
    if before.filters != now.filters:
        return "its row filter has changed"
    return (
        columns_differ(before.columns, now.columns)
        or _rewritten(before, now)
        or _types_differ(before.types, now.types)
        or _leaves_differ(before.leaves, now.leaves)
    )


def columns_differ(before: Mapping[str, CatalogColumn], now: Mapping[str, CatalogColumn]) -> str | None:
    """Why rows that came before may have other values in a column; None if they have the same."""
    names = {each.number: name for name, each in before.items()}
    for name, column in now.items():
        if not column.is_published:
            continue
        known = before.get(name)
        if known is None:
            if column.number in names:
                return f"its column {name!r} was renamed, or added again"
            if column.is_filled:
                return f"its new column {name!r} has values in old rows, which the stream does not have"
            continue
        if known.number != column.number:
            return f"its column {name!r} was renamed, or added again"
        if not known.is_published:
            return f"its column {name!r} was not published before"
        if not _is_same_type(known, column):
            return f"the type of its column {name!r} has changed"
    return None


def _is_same_type(before: CatalogColumn, now: CatalogColumn) -> bool:
    """Whether all values stay as they are, too: that is so if a varchar becomes longer, or text."""
    if (before.type_oid, before.typmod) == (now.type_oid, now.typmod):
        return True
    if not {before.type_oid, now.type_oid} <= {_TEXT, _VARCHAR}:
        return False
    return now.typmod == -1 or -1 < before.typmod <= now.typmod


def is_only_repacked(before: Fingerprint | Leaf, now: Fingerprint | Leaf) -> bool:
    """Whether nothing but a REPACK (CONCURRENTLY) has written the rows of a table again: it was seen at work."""
    return before.repack != 0 and before.repack == now.written


def _rewritten(before: Fingerprint, now: Fingerprint) -> str | None:
    """Whether ALTER TABLE has computed the rows again."""
    is_other_toast = before.toast != 0 and now.toast != 0 and before.toast != now.toast
    is_repacked = is_only_repacked(before, now)
    if is_other_toast and not is_repacked and not before.stays_logged:
        return "its rows were written again by ALTER TABLE"
    files = {before.filenode: now.filenode}
    files |= {
        each.filenode: now.leaves[oid].filenode for oid, each in before.leaves.items() if oid in now.leaves
    }
    # VACUUM FULL, CLUSTER and TRUNCATE leave the columns as they are. TRUNCATE comes in the stream.
    if all(old == new for old, new in files.items()):
        return None
    known = {each.number: each for each in before.columns.values()}
    for each in now.columns.values():
        old = known.get(each.number)
        # VACUUM FULL writes the value that the catalog kept into the rows. So does ALTER TABLE, and only another TOAST
        # table tells it from VACUUM FULL.
        is_packable = is_repacked or (before.toast != 0 and not is_other_toast)
        is_packed = is_packable and old is not None and old.is_missing and not each.is_missing
        if old is None or (old.xmin != each.xmin and not is_packed):
            return "its rows were written again, and its columns were altered"
    return None


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


def doubts(before: Fingerprint, now: Fingerprint) -> Iterator[Doubt]:
    """What only the rows of partitions tell. Ask if there is no `difference`."""
    for oid, leaf in now.leaves.items():
        known = before.leaves.get(oid)
        if known is None:
            if not leaf.is_born:
                yield Doubt(leaf, None)
        elif known.filenode != leaf.filenode and not is_only_repacked(known, leaf):
            yield Doubt(leaf, before.horizon)
