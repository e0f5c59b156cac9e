"""Options of a decoder."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.catalog.identifiers import parse_qualified_name, qualified_like, quote_qualified_name
from pgoutput_fast.catalog.relations import Relation

__all__ = ["Options", "Transactions"]

# Which transactions to return: all as they are sent, or only committed ones.
Transactions = Literal["as_sent", "committed"]

# Offsets of strings and lists are int32, and a message of 1 GiB may be added before a batch is closed. A row has at
# most 16 bytes in `_change_type`.
_MOST_BYTES = 1 << 30
_MOST_ROWS = 1 << 26


@dataclass(frozen=True)
class Options:
    """How to decode. Options are immutable, can be shared by decoders, and can be pickled.

    Args:
        transactions: `"as_sent"` returns all changes as they arrive. `"committed"` returns only the changes of
            committed transactions, when the commit arrives.
        on_error: `"raise"` raises `DecodeError` at a malformed message and undoes the call. `"quarantine"` puts the
            message into `rejects` and continues.
        unrepresentable: what to do with a legal value that its Arrow type cannot hold. `"null"` makes it null, names
            its column in `_unrepresentable` and puts the value into `rejects`. `"raise"` raises `DecodeError`.
        numeric: type of numerics without a precision, or with a precision of more than 38 digits: `"string"` as
            PostgreSQL prints them, `"float64"`, or a `pyarrow.decimal128`.
        uuid: type of uuids: `"string"`, `"fixed_size_binary"` (16 bytes) or `"arrow.uuid"` (Arrow's extension type).
        strings: type of all string columns (not of strings in lists): `"string"` or `"string_view"`.
        plain: tables for all tools, such as CSV, polars and spreadsheets: lists, maps and structs become JSON texts,
            times and intervals ISO 8601 texts, uuids strings, geometries bytes, also in metadata columns. This takes
            more time. Not for Spark and mirrors, whose tables have plain types anyway.
        schemas: {table: pinned schema} for `Decoded.table`. A table is a qualified name or an oid, as in
            `Decoded.table`. A pinned schema is a `pyarrow.Schema` or a `Relation`. `Decoded.table` returns these tables
            with their pinned schemas, whatever versions of the relation arrive.
        tables: decode only changes of these tables: a list of qualified names and oids. The decoder does not read the
            rows of other tables. `truncates`, `transactions` and `messages` do not depend on it. None for all tables.
        columns: {table: names}: decode only these columns of these tables. The decoder does not read other columns,
            and the schema does not have them. A table is a qualified name or an oid. When the first change of a table
            arrives, a name that no known version of the table has is a ValueError.
        extra_columns: what to do with a column that a pinned schema lacks: `"error"` raises, `"drop"` leaves it out.
        metadata_prefix: prefix of the names of the metadata columns.
        threads: maximum number of decoding threads, including the calling thread. It does not affect the result.
        batch_rows: maximum rows of a record batch (from 2 to 2^26: Arrow's offsets have 31 bits).
        batch_bytes: a record batch is closed when it, or its messages, reach this many bytes (at most 2^30).
        memory_limit: maximum bytes of changes that wait in memory for their commit, with `"committed"`. Further changes
            go to spill files.
        spill_directory: the directory of the spill files, created if it does not exist. A saved state names the files,
            and they are kept until a later state replaces it. Without a directory (None), the decoder uses a temporary
            one and removes it at its end, and a saved state contains all waiting changes.

    Raises:
        ValueError: for an invalid value.
        TypeError: for a `spill_directory` that is not a path, and for `tables`, `schemas` or `columns` of another type.

    >>> Options(numeric="float64").numeric
    'float64'
    """

    transactions: Transactions = "as_sent"
    on_error: Literal["raise", "quarantine"] = "raise"
    unrepresentable: Literal["null", "raise"] = "null"
    numeric: str | pa.Decimal128Type = "string"
    uuid: Literal["string", "fixed_size_binary", "arrow.uuid"] = "string"
    strings: Literal["string", "string_view"] = "string"
    plain: bool = False
    schemas: Mapping[str | int, pa.Schema | Relation] | None = field(default=None, hash=False)
    tables: Collection[str | int] | None = None
    columns: Mapping[str | int, Collection[str]] | None = field(default=None, hash=False)
    extra_columns: Literal["error", "drop"] = "error"
    metadata_prefix: str = "_"
    threads: int = 1
    batch_rows: int = 16_384
    batch_bytes: int = 1 << 24
    memory_limit: int = 1 << 26
    spill_directory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _one_of("transactions", self.transactions, "as_sent", "committed")
        _one_of("on_error", self.on_error, "raise", "quarantine")
        _one_of("unrepresentable", self.unrepresentable, "null", "raise")
        if not isinstance(self.numeric, pa.Decimal128Type):
            _one_of("numeric", self.numeric, "string", "float64")
        elif not 0 <= self.numeric.scale <= self.numeric.precision:
            raise ValueError("numeric must be a decimal128 whose scale lies between 0 and its precision")
        _one_of("uuid", self.uuid, "string", "fixed_size_binary", "arrow.uuid")
        _one_of("strings", self.strings, "string", "string_view")
        if not isinstance(self.plain, bool):
            raise ValueError(f"plain must be True or False, not {self.plain!r}")
        if self.plain:
            object.__setattr__(self, "uuid", "string")
            object.__setattr__(self, "strings", "string")
        _one_of("extra_columns", self.extra_columns, "error", "drop")
        if self.schemas is not None:
            if not isinstance(self.schemas, Mapping):
                raise TypeError(f"schemas must map tables to schemas, not be a {type(self.schemas).__name__}")
            object.__setattr__(
                self, "schemas", {_table(key): _pin(value) for key, value in self.schemas.items()}
            )
        if self.tables is not None:
            expect_list("tables", self.tables)
            object.__setattr__(self, "tables", frozenset(_table(each, "tables") for each in self.tables))
            if not self.tables:
                raise ValueError("tables must name at least one table; None decodes all of them")
        if self.columns is not None:
            if not isinstance(self.columns, Mapping):
                raise TypeError(
                    f"columns must map tables to names of columns, not be a {type(self.columns).__name__}"
                )
            object.__setattr__(
                self,
                "columns",
                {_table(key, "columns"): _names(value) for key, value in self.columns.items()},
            )
        if not isinstance(self.metadata_prefix, str):
            raise ValueError("metadata_prefix must be a str")
        _at_least("threads", self.threads, 1)
        _at_least("batch_rows", self.batch_rows, 2, _MOST_ROWS)
        _at_least("batch_bytes", self.batch_bytes, 1, _MOST_BYTES)
        _at_least("memory_limit", self.memory_limit, 1)
        if self.spill_directory is not None:
            directory = os.fspath(self.spill_directory)
            if not isinstance(directory, str) or not directory:
                raise ValueError(
                    "spill_directory must be the path of a directory, as a str or an os.PathLike of str"
                )
            object.__setattr__(self, "spill_directory", directory)

    def selects(self, relation: Relation) -> bool:
        """Whether `tables` selects a relation."""
        return self.tables is None or relation.qualified_name in self.tables or relation.oid in self.tables

    def columns_of(self, relation: Relation) -> Collection[str] | None:
        """Names of the columns of a relation that `columns` selects, None for all."""
        if self.columns is None:
            return None
        found = self.columns.get(relation.qualified_name)
        return self.columns.get(relation.oid) if found is None else found

    def check_columns(
        self, relation: Relation, known: Iterable[Relation], seen: set[tuple[str | int, str]]
    ) -> None:
        """Checks that every name in `columns` is a column of some version of a relation, to detect misspelt names.

        Args:
            relation: a version of the relation.
            known: all known versions of all relations.
            seen: (table, column name) known from earlier calls, to which this call adds.

        Raises:
            ValueError: if no version has a column; the error lists the existing columns.
        """
        selected = self.columns_of(relation)
        if not selected:
            return
        columns = self.columns or {}
        table = relation.qualified_name if relation.qualified_name in columns else relation.oid
        own = {column.name for column in relation.columns}
        missing = sorted(name for name in selected if name not in own and (table, name) not in seen)
        if not missing:
            return
        existing = dict.fromkeys(
            column.name
            for each in (*known, relation)
            if each.oid == table or each.qualified_name == table
            for column in each.columns
        )
        seen.update((table, name) for name in existing)
        for name in missing:
            if name not in existing:
                near = get_close_matches(name, existing, 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise ValueError(
                    f"columns: {relation.qualified_name} has no column {name!r}{hint} in any version known so far; "
                    f"there is {', '.join(map(repr, existing)) or 'none'}"
                )

    def pinned(self, table: str | int) -> pa.Schema | Relation | None:
        """The pinned schema of a table, or None."""
        return self.schemas.get(_table(table)) if self.schemas is not None else None


def _table(table: Any, option: str = "schemas") -> str | int:
    """The table in normalized form, as a key: an oid, or a quoted qualified name."""
    if not isinstance(table, str):
        return operator.index(table)
    parts = parse_qualified_name(table)
    if parts is None:
        raise ValueError(f"{option}: {table!r} is not a qualified name such as {qualified_like(table)}")
    return quote_qualified_name(*parts)


def _pin(schema: Any) -> pa.Schema | Relation:
    if not isinstance(schema, pa.Schema | Relation):
        raise TypeError(
            f"schemas must map tables to pyarrow Schemas or Relations, not to {type(schema).__name__}"
        )
    if isinstance(schema, pa.Schema) and len(set(schema.names)) < len(schema.names):
        raise ValueError("schemas: a pinned schema names a column twice")
    return schema


def _names(names: Any) -> frozenset[str]:
    expect_list("columns", names)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("columns must map tables to collections of names")
    return frozenset(names)


def _one_of(name: str, value: Any, *allowed: str) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")


def _at_least(name: str, value: Any, least: int, most: int | None = None) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, not {value!r}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be an int of at most {most}, not {value!r}")
