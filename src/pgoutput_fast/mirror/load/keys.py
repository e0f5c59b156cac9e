"""Finds rows on the server by their keys."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa

from pgoutput_fast.catalog.builtin_types import OID_OF_NAME
from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.merge.keys import key_of

__all__ = ["conditions"]

# The most keys of a query.
_MOST_KEYS = 500


def _integer(value: int) -> str:
    return f"'{value:d}'::pg_catalog.int8"


def _text(value: str) -> str:
    # Digits need no escapes, whatever the settings of the server are.
    return f"pg_catalog.convert_from(pg_catalog.decode('{value.encode().hex()}', 'hex'), 'UTF8')"


def _uuid(value: str | bytes | uuid.UUID) -> str:
    if isinstance(value, bytes):
        value = uuid.UUID(bytes=value)
    return f"'{uuid.UUID(str(value))}'::pg_catalog.uuid"


_LITERALS: dict[int, Callable[..., str]] = {
    **{OID_OF_NAME[name]: _integer for name in ("int2", "int4", "int8")},
    **{OID_OF_NAME[name]: _text for name in ("text", "varchar")},
    OID_OF_NAME["uuid"]: _uuid,
}


def conditions(relation: Relation, keys: pa.Table) -> Iterator[str]:
    """SQL conditions for the rows with some keys, each for a number of them.

    Args:
        relation: has the key.
        keys: the columns of the key, as they are decoded.

    Raises:
        ValueError: for a key of another type than integers, text, varchar and uuid.

    >>> from pgoutput_fast.catalog.relations import Column
    >>> of_ids = Relation(16400, 1, "public", "t", "d", (Column("id", 23, -1, True),))
    >>> list(conditions(of_ids, pa.table({"id": [7, -8]})))
    ["(id OPERATOR(pg_catalog.=) '7'::pg_catalog.int8) OR (id OPERATOR(pg_catalog.=) '-8'::pg_catalog.int8)"]
    """
    literals = []
    for column in relation.columns:
        if column.name in key_of(relation):
            if column.type_oid not in _LITERALS:
                raise ValueError(f"rows cannot be found by column {column.name!r}, because of its type")
            literals.append((column.name, _LITERALS[column.type_oid]))
    for begin in range(0, keys.num_rows, _MOST_KEYS):
        yield " OR ".join(
            "("
            + " AND ".join(
                f"{quote_identifier(name)} OPERATOR(pg_catalog.=) {literal(row[name])}"
                for name, literal in literals
            )
            + ")"
            for row in keys.slice(begin, _MOST_KEYS).to_pylist()
        )
