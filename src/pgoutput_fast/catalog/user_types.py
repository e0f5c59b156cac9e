"""User-defined types from a server's catalog: enums, domains, composites, ranges, arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.protocol.limits import LAST_UINT32

__all__ = ["NO_TYPES", "TypeField", "UserType", "UserTypes"]

Kind = Literal["base", "enum", "domain", "composite", "range", "multirange", "array"]
_KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class TypeField:
    """A field of a composite type. Dropped fields have no TypeField.

    Attributes:
        name: name of the field.
        type_oid: oid of its type.
        typmod: type modifier, -1 for none.

    >>> price = TypeField("price", 1700, typmod=(12 << 16 | 2) + 4)  # numeric(12,2)
    >>> price.name, price.type_oid
    ('price', 1700)
    """

    name: str
    type_oid: int
    typmod: int = -1


@dataclass(frozen=True)
class UserType:
    """A type as the server's catalog describes it.

    Attributes:
        oid: oid of the type on the server that it was read from.
        namespace, name: its schema and name.
        kind: kind of the type. `base` is a type with its own input and output functions, such as an extension's.
        of: oid of the underlying type: for a domain the base type, for an array the element type, for a range the type
            of its bounds, for a multirange the range type; else 0.
        typmod: for a domain, the type modifier of its base type; -1 for none.
        labels: labels of an enum, in order.
        fields: fields of a composite, in order.
        delimiter: the character between the elements of its arrays, in text format.
        extension: name of its extension; empty if none.

    >>> item = UserType(16500, "public", "item", "composite", fields=(TypeField("sku", 25), TypeField("price", 1700)))
    >>> UserType.from_dict(item.to_dict()) == item
    True
    """

    oid: int
    namespace: str
    name: str
    kind: Kind
    of: int = 0
    typmod: int = -1
    labels: tuple[str, ...] = ()
    fields: tuple[TypeField, ...] = ()
    delimiter: str = ","
    extension: str = ""

    def __post_init__(self) -> None:
        expect_list("labels", self.labels, "labels")
        expect_list("fields", self.fields, "TypeField")

    def to_dict(self) -> dict[str, Any]:
        """The type as JSON values, without default values."""
        values: dict[str, Any] = {
            "oid": self.oid,
            "namespace": self.namespace,
            "name": self.name,
            "kind": self.kind,
        }
        if self.of:
            values["of"] = self.of
        if self.typmod != -1:
            values["typmod"] = self.typmod
        if self.kind == "enum":
            values["labels"] = list(self.labels)
        if self.kind == "composite":
            values["fields"] = [[field.name, field.type_oid, field.typmod] for field in self.fields]
        if self.delimiter != ",":
            values["delimiter"] = self.delimiter
        if self.extension:
            values["extension"] = self.extension
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> UserType:
        """The inverse of `to_dict`.

        Raises:
            ValueError: if the values are not a type.
        """
        try:
            one = cls(
                values["oid"],
                values["namespace"],
                values["name"],
                values["kind"],
                values.get("of", 0),
                values.get("typmod", -1),
                tuple(values.get("labels", ())),
                tuple(TypeField(*field) for field in values.get("fields", ())),
                values.get("delimiter", ","),
                values.get("extension", ""),
            )
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"not a type: {problem!r}") from None
        oids = [one.oid, one.of, *(field.type_oid for field in one.fields)]
        typmods = [one.typmod, *(field.typmod for field in one.fields)]
        texts = [
            one.namespace,
            one.name,
            one.delimiter,
            one.extension,
            *one.labels,
            *(f.name for f in one.fields),
        ]
        if (
            one.kind not in _KINDS
            or not all(isinstance(each, str) for each in texts)
            or not all(_within(oid, 0, LAST_UINT32) for oid in oids)
            or not all(_within(typmod, -(1 << 31), (1 << 31) - 1) for typmod in typmods)
        ):
            raise ValueError("not a type: a kind, an oid or a name has a wrong type or value")
        return one


def _within(number: Any, least: int, most: int) -> bool:
    return isinstance(number, int) and least <= number <= most


class UserTypes(Mapping[int, UserType]):
    """A mapping of types by oid. It is immutable and hashable.

    >>> mood = UserType(16390, "public", "mood", "enum", labels=("sad", "ok"))
    >>> UserTypes([mood])[16390].labels
    ('sad', 'ok')
    """

    def __init__(self, types: Iterable[UserType] = ()) -> None:
        expect_list("types", types, "UserType")
        self._by_oid = {each.oid: each for each in types}
        self._hash = hash(frozenset(self._by_oid.values()))

    def __getitem__(self, oid: int) -> UserType:
        return self._by_oid[oid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_oid)

    def __len__(self) -> int:
        return len(self._by_oid)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserTypes) and self._by_oid == other._by_oid

    def __repr__(self) -> str:
        return f"UserTypes({', '.join(f'{each.namespace}.{each.name}' for each in self.values())})"

    def merged(self, other: UserTypes) -> UserTypes:
        """The types of both; for an oid in both, the type of `other`."""
        return UserTypes([*self.values(), *other.values()]) if other else self

    def base_of(self, oid: int) -> int:
        """The oid of a domain's base type, through domains over domains. For any other type, the oid itself."""
        seen = set()
        while (known := self._by_oid.get(oid)) is not None and known.kind == "domain" and oid not in seen:
            seen.add(oid)
            oid = known.of
        return oid


NO_TYPES = UserTypes()
