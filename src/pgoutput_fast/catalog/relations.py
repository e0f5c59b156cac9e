"""Relation versions from the Relation and Type messages of a stream, and types from a live server."""

from __future__ import annotations

import hashlib
import json
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import escaped, html_table, some_of
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.catalog.formatting import format_name, format_type
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_qualified_name
from pgoutput_fast.catalog.read_types import read_types
from pgoutput_fast.catalog.user_types import NO_TYPES, UserType, UserTypes
from pgoutput_fast.protocol.limits import LAST_UINT32

__all__ = ["Catalog", "Column", "Relation"]

CATALOG_FORMAT = 1

# Limits of the names in an error: of more names, only the nearest. Longer names than a server allows are not compared.
_NAMED, _NEAREST, _LONGEST_NAME = 10, 3, 200
# Limits of shown columns and tables.
_SHOWN_COLUMNS, _SHOWN_TABLES = 10, 50
_SHOWN_COLUMNS_OF_HTML = 200
_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column as a Relation message describes it.

    Attributes:
        name: its name.
        type_oid: oid of its type.
        typmod: the type's modifier (atttypmod), -1 for none.
        key: whether it belongs to the replica identity.
        type_namespace, type_name: the schema and name of its type, from a Type message; None for built-in types.

    >>> Column("mood", 16500, type_namespace="public", type_name="mood").key
    False
    """

    name: str
    type_oid: int
    typmod: int = -1
    key: bool = False
    type_namespace: str | None = None
    type_name: str | None = None

    @property
    def type_in_words(self) -> str:
        """The type as SQL writes it, with its modifier. Characters that are not printable are escaped.

        >>> Column("price", 1700, (10 << 16 | 2) + 4).type_in_words, Column("mood", 16500).type_in_words
        ('numeric(10,2)', 'type 16500')
        """
        if self.type_namespace is None or self.type_name is None:
            return format_type(self.type_oid, self.typmod)
        name = f"{format_name(self.type_namespace)}.{format_name(self.type_name)}"
        return format_type(self.type_oid, self.typmod, name)


@dataclass(frozen=True, slots=True, repr=False)
class Relation:
    """One version of a relation. A Relation message that is sent again unchanged describes the same version.

    Attributes:
        oid: the relation's oid on the server it came from.
        version: the first 8 bytes, big-endian and signed, of the SHA-256 of the message's body without tag and xid.
        namespace: its schema; `pg_catalog` if the message leaves it empty.
        name: its name.
        replica_identity: `d` (default), `n` (nothing), `f` (full) or `i` (an index).
        columns: its published columns in order.

    >>> orders = Relation(16401, 7, "public", "Orders", "d", (Column("id", 23, key=True), Column("note", 25)))
    >>> orders.qualified_name
    'public."Orders"'
    >>> Relation.from_dict(orders.to_dict()) == orders
    True
    >>> orders
    <Relation public."Orders", oid 16401: id int4 key, note text>
    """

    oid: int
    version: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        expect_list("columns", self.columns, "Column")

    def __hash__(self) -> int:
        return hash(self.version)

    def __repr__(self) -> str:
        columns = [
            f"{format_name(each.name)} {each.type_in_words}{' key' if each.key else ''}"
            for each in self.columns
        ]
        listed = some_of(columns, _SHOWN_COLUMNS) if columns else "no columns"
        return f"<Relation {escaped(self.qualified_name)}, oid {self.oid}: {listed}>"

    def _repr_html_(self) -> str:
        rows = [
            (each.name, each.type_in_words, "yes" if each.key else "")
            for each in self.columns[:_SHOWN_COLUMNS_OF_HTML]
        ]
        title = f"{self.qualified_name}, oid {self.oid}, replica identity {self.identity_in_words}"
        return html_table(title, ["column", "type", "key"], rows, len(self.columns) - len(rows))

    @property
    def identity_in_words(self) -> str:
        """The replica identity as SQL calls it.

        >>> Relation(1, 0, "public", "orders", "f", ()).identity_in_words
        'full'
        """
        return _IDENTITIES.get(self.replica_identity, self.replica_identity)

    @property
    def qualified_name(self) -> str:
        """Schema and name, quoted as SQL quotes them."""
        return quote_qualified_name(self.namespace, self.name)

    def wire_body(self) -> bytes:
        """The body of the Relation message that describes this version, without tag and xid."""
        namespace = "" if self.namespace == "pg_catalog" else self.namespace
        parts = [
            struct.pack(">I", self.oid),
            namespace.encode() + b"\0",
            self.name.encode() + b"\0",
            self.replica_identity.encode("ascii"),
            struct.pack(">h", len(self.columns)),
        ]
        for column in self.columns:
            parts.append(struct.pack(">b", column.key) + column.name.encode() + b"\0")
            parts.append(struct.pack(">Ii", column.type_oid, column.typmod))
        return b"".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "oid": self.oid,
            "version": str(self.version),  # a JSON number may lose digits
            "namespace": self.namespace,
            "name": self.name,
            "replica_identity": self.replica_identity,
            "columns": [
                [c.name, c.type_oid, c.typmod, c.key, c.type_namespace, c.type_name] for c in self.columns
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Relation:
        """The inverse of `to_dict`.

        Raises:
            ValueError: if the values are not a relation version.
        """
        one = cls(
            values["oid"],
            int(values["version"]),
            values["namespace"],
            values["name"],
            values["replica_identity"],
            tuple(Column(*column) for column in values["columns"]),
        )
        texts = one.namespace, one.name, one.replica_identity
        if (
            type(one.oid) is not int
            or not 0 <= one.oid <= LAST_UINT32
            or not -(1 << 63) <= one.version < 1 << 63
            or not all(type(text) is str for text in texts)
            or not all(map(_is_column, one.columns))
        ):
            raise ValueError("not a relation: an oid, a version or a name has a wrong type or value")
        if len({column.name for column in one.columns}) != len(one.columns):
            raise ValueError(f"not a relation: {one.qualified_name} has two columns with the same name")
        return one


def _is_column(column: Column) -> bool:
    return (
        type(column.name) is str
        and type(column.type_oid) is int
        and 0 <= column.type_oid <= LAST_UINT32
        and type(column.typmod) is int
        and -(1 << 31) <= column.typmod < 1 << 31
        and column.key in (0, 1)
        and (column.type_namespace is None or type(column.type_namespace) is str)
        and (column.type_name is None or type(column.type_name) is str)
    )


def version_of(body: bytes) -> int:
    """The version id of a Relation body: the first 8 bytes of its SHA-256, big-endian and signed."""
    return int.from_bytes(hashlib.sha256(body).digest()[:8], "big", signed=True)


def type_offset(relation: Relation, column: int) -> int:
    """Offset of a column's type in a Relation body."""
    return (
        len(replace(relation, columns=relation.columns[:column]).wire_body())
        + 2
        + len(relation.columns[column].name.encode())
    )


class Catalog:
    """The relation versions of a stream: small, picklable, and sufficient to decode tagged payloads.

    Args:
        relations: relation versions. The last one with an id counts.
        types: types of a live server, from `enriched`.

    >>> catalog = Catalog([Relation(16401, 7, "public", "orders", "d", (Column("id", 23),))])
    >>> Catalog.from_json(catalog.to_json()) == catalog
    True
    >>> catalog.named("public.orders")[0].oid
    16401
    """

    def __init__(
        self, relations: Iterable[Relation] = (), types: Iterable[UserType] | UserTypes = NO_TYPES
    ) -> None:
        expect_list("relations", relations, "Relation")
        self._load: Callable[[], dict[int, Relation]] | None = None
        self._known: dict[int, Relation] = {relation.version: relation for relation in relations}
        self._types = types if isinstance(types, UserTypes) else UserTypes(types)

    @classmethod
    def lazily(cls, load: Callable[[], dict[int, Relation]], types: UserTypes) -> Catalog:
        """A catalog that calls `load` for its versions on first access."""
        catalog = cls(types=types)
        catalog._load = load
        return catalog

    @property
    def _by_version(self) -> dict[int, Relation]:
        if self._load is not None:
            self._known = self._load()
            self._load = None
        return self._known

    def __getstate__(self) -> dict[str, Any]:
        return {"_load": None, "_known": self._by_version, "_types": self._types}

    @property
    def relations(self) -> tuple[Relation, ...]:
        """All versions, in order of their first description."""
        return tuple(self._by_version.values())

    @property
    def types(self) -> UserTypes:
        """Types that are not built in, by oid; empty if they were not read from a live server."""
        return self._types

    def enriched(self, connection: Any) -> Catalog:
        """The same catalog with the types of a live server: see `catalog.read_types`."""
        return Catalog(self.relations, self.types.merged(read_types(connection)))

    def explained(self, types: UserTypes) -> Catalog:
        """The same catalog with the types of the server that sends the stream.

        On that server, the oid identifies a type, even if its name differs: the stream has the name at the time of the
        change, and `types` the name at the time of the read.

        >>> mood = UserType(16400, "public", "mood", "enum", labels=("sad", "ok"))
        >>> table = Relation(16401, 7, "public", "t", "d", (Column("m", 16400, type_namespace="s", type_name="old"),))
        >>> Catalog([table]).explained(UserTypes([mood])).relations[0].columns[0].type_name is None
        True
        """
        explained = self.types.merged(types)
        relations = (
            replace(
                relation,
                columns=tuple(
                    replace(column, type_namespace=None, type_name=None)
                    if column.type_oid in explained
                    else column
                    for column in relation.columns
                ),
            )
            for relation in self.relations
        )
        return Catalog(relations, explained)

    def __len__(self) -> int:
        return len(self._by_version)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Catalog)
            and self._by_version == other._by_version
            and self._types == other._types
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, which can grow

    def __repr__(self) -> str:
        names = list(dict.fromkeys(relation.qualified_name for relation in self.relations))
        return f"Catalog({escaped(some_of(names)) if names else ''})"

    def _repr_html_(self) -> str:
        versions: dict[str, list[Relation]] = {}
        for relation in self.relations:
            versions.setdefault(relation.qualified_name, []).append(relation)
        rows = [
            (name, str(found[-1].oid), len(found), len(found[-1].columns), found[-1].identity_in_words)
            for name, found in islice(versions.items(), _SHOWN_TABLES)
        ]
        head = ["table", "oid", "versions", "columns", "replica identity"]
        title = f"Catalog; tables: {len(versions):,}, types: {len(self.types):,}"
        return html_table(title, head, rows, len(versions) - len(rows))

    def get(self, version: int) -> Relation | None:
        """The relation version with this id, None if the catalog does not have it."""
        return self._by_version.get(version)

    def named(self, table: str | int) -> tuple[Relation, ...]:
        """All versions with a qualified name or an oid.

        Raises:
            KeyError: if there is none; the message names existing tables.
        """
        key = parse_qualified_name(table) if isinstance(table, str) else operator.index(table)
        found = () if key is None else self._versions.get(key, ())
        if not found:
            raise KeyError(no_such_table(table, self.relations))
        return tuple(found)

    @cached_property
    def _versions(self) -> dict[int | tuple[str, str], list[Relation]]:
        """The versions with an oid, or with a schema and a name."""
        found: dict[int | tuple[str, str], list[Relation]] = {}
        for each in self.relations:
            found.setdefault(each.oid, []).append(each)
            found.setdefault((each.namespace, each.name), []).append(each)
        return found

    def merged(self, other: Catalog) -> Catalog:
        """The versions of both catalogs; for a version in both, that of the other counts."""
        return Catalog.of_all([self, other])

    @classmethod
    def of_all(cls, catalogs: Iterable[Catalog]) -> Catalog:
        """The versions of several catalogs; for a version in several, that of the last counts."""
        known: dict[int, Relation] = {}
        types = NO_TYPES
        for each in catalogs:
            known.update(each._by_version)
            types = types.merged(each.types)
        merged = cls(types=types)
        merged._known = known
        return merged

    def fingerprint(self) -> str:
        """A digest of the catalog, including types, which the version ids do not cover."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        ordered: list[Any] = [r.to_dict() for r in sorted(self.relations, key=lambda each: each.version)]
        if self.types:
            ordered.append([self.types[oid].to_dict() for oid in sorted(self.types)])
        return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "format": CATALOG_FORMAT,
            "relations": [relation.to_dict() for relation in self.relations],
            "types": [self.types[oid].to_dict() for oid in sorted(self.types)],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Catalog:
        """The inverse of `to_dict`.

        Raises:
            ValueError: if the values are not a catalog of a known format.
        """
        if not isinstance(values, Mapping) or values.get("format") != CATALOG_FORMAT:
            raise ValueError(
                f"not a catalog of format {CATALOG_FORMAT}: another version of pgoutput_fast wrote it"
            )
        try:
            return cls(
                [Relation.from_dict(each) for each in values["relations"]],
                UserTypes(UserType.from_dict(each) for each in values.get("types", ())),
            )
        except KeyError as problem:
            raise ValueError(f"not a catalog: {problem} is missing") from None
        except (TypeError, AttributeError, OverflowError) as problem:
            raise ValueError(f"not a catalog: {problem}") from None

    def to_json(self) -> str:
        """As a JSON document."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Catalog:
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is not a catalog of a known format.
        """
        return cls.from_dict(parsed_json(text, "catalog"))


def no_such_table(table: str | int, relations: Iterable[Relation]) -> str:
    """The error text for an unknown table, with the nearest of many names."""
    names = sorted({relation.qualified_name for relation in relations})
    if len(names) <= _NAMED:
        return f"no relation {table!r} here; there is {escaped(', '.join(names)) if names else 'none'}"
    near = _nearest(table, names) if isinstance(table, str) else []
    if not near:
        return f"no relation {table!r} here; there is {escaped(some_of(names))}"
    return f"no relation {table!r} here; of {len(names):,} names the nearest: {escaped(', '.join(near))}"


def _nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names most similar to `name`: first those with this name in any schema."""
    from difflib import get_close_matches

    names = [other for other in names if len(other) <= _LONGEST_NAME]
    same = [other for other in names if other.rpartition(".")[2] == name.rpartition(".")[2]]
    return list(dict.fromkeys([*same, *get_close_matches(name[:_LONGEST_NAME], names)]))[:_NEAREST]
