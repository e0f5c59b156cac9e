"""SQL that DuckDB and Spark write in different ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

__all__ = ["DIALECTS", "Dialect", "DuckDB", "Spark"]

_NAMES = {
    "bool": "BOOLEAN",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
}


class Dialect(ABC):
    """A dialect of SQL."""

    #: Names of types that are not the same everywhere, by Arrow's names.
    names: dict[str, str]
    #: Begins a statement with common table expressions that refer to themselves.
    recursive = "WITH RECURSIVE"
    #: An empty list of texts.
    no_texts: str

    def type_of(self, kind: pa.DataType) -> str:
        """The name of a type.

        Raises:
            ValueError: for a type that no mirrored table has.
        """
        if pa.types.is_decimal(kind):
            return f"DECIMAL({kind.precision}, {kind.scale})"
        if pa.types.is_list(kind):
            return self.list_of(self.type_of(kind.value_type))
        if pa.types.is_struct(kind):
            return self.struct_of([(field.name, self.type_of(field.type)) for field in kind])
        name = self.names.get(str(kind)) or _NAMES.get(str(kind))
        if name is None:
            raise ValueError(f"{type(self).__name__} has no type for {kind}")
        return name

    @abstractmethod
    def name(self, text: str) -> str:
        """A quoted name."""

    @abstractmethod
    def text(self, text: str) -> str:
        """A literal."""

    @abstractmethod
    def list_of(self, kind: str) -> str:
        """The type of lists."""

    @abstractmethod
    def struct_of(self, fields: Sequence[tuple[str, str]]) -> str:
        """The type of structs."""

    @abstractmethod
    def struct(self, **values: str) -> str:
        """A struct of expressions."""

    @abstractmethod
    def has(self, names: str, name: str) -> str:
        """Whether a list of texts, which may be null, has a text."""

    @abstractmethod
    def those(self, names: Sequence[str]) -> str:
        """The list of those expressions that are not null; null if all are."""

    @abstractmethod
    def either(self, one: str, other: str) -> str:
        """The values that one of two lists has, each once."""

    @abstractmethod
    def both(self, one: str, other: str) -> str:
        """The values that both of two lists have, each once."""

    @abstractmethod
    def last_known(self, value: str, window: str) -> str:
        """The last value in a window that is not null."""

    @abstractmethod
    def fail(self, message: str) -> str:
        """An expression that ends the query with an error."""

    def exact(self, column: str) -> str:
        """A text that tells values apart which the dialect takes for equal: -0.0 and 0.0."""
        return f"CAST({column} AS {self.type_of(pa.string())})"


class DuckDB(Dialect):
    """The dialect of DuckDB."""

    names = {  # noqa: RUF012
        "string": "VARCHAR",
        "binary": "BLOB",
        "timestamp[us]": "TIMESTAMP",
        "timestamp[us, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
    }
    no_texts = "[]::VARCHAR[]"

    def name(self, text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    def text(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def list_of(self, kind: str) -> str:
        return f"{kind}[]"

    def struct_of(self, fields: Sequence[tuple[str, str]]) -> str:
        return f"STRUCT({', '.join(f'{self.name(name)} {kind}' for name, kind in fields)})"

    def struct(self, **values: str) -> str:
        return f"struct_pack({', '.join(f'{name} := {value}' for name, value in values.items())})"

    def has(self, names: str, name: str) -> str:
        return f"coalesce(list_contains({names}, {self.text(name)}), false)"

    def those(self, names: Sequence[str]) -> str:
        return f"nullif(list_filter([{', '.join(names)}], lambda each: each IS NOT NULL), [])"

    def either(self, one: str, other: str) -> str:
        return f"list_distinct(list_concat({one}, {other}))"

    def both(self, one: str, other: str) -> str:
        return f"list_intersect({one}, {other})"

    def last_known(self, value: str, window: str) -> str:
        return f"last_value({value} IGNORE NULLS) OVER ({window})"

    def fail(self, message: str) -> str:
        return f"error({self.text(message)})"

    def files(self, places: Sequence[str]) -> str:
        """The rows of Parquet files.

        Raises:
            ValueError: if DuckDB would take a path for a pattern.
        """
        if any(mark in place for place in places for mark in "*?["):
            raise ValueError("DuckDB takes *, ? and [ in a path for a pattern: give the target another path")
        listed = ", ".join(map(self.text, places))
        return f"SELECT * FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"


class Spark(Dialect):
    """The dialect of Spark."""

    names = {  # noqa: RUF012
        "string": "STRING",
        "binary": "BINARY",
        "timestamp[us]": "TIMESTAMP_NTZ",
        "timestamp[us, tz=UTC]": "TIMESTAMP",
    }
    no_texts = "CAST(array() AS array<string>)"

    def name(self, text: str) -> str:
        return "`" + text.replace("`", "``") + "`"

    def text(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def list_of(self, kind: str) -> str:
        return f"ARRAY<{kind}>"

    def struct_of(self, fields: Sequence[tuple[str, str]]) -> str:
        return f"STRUCT<{', '.join(f'{self.name(name)}: {kind}' for name, kind in fields)}>"

    def struct(self, **values: str) -> str:
        return f"named_struct({', '.join(f'{self.text(name)}, {value}' for name, value in values.items())})"

    def has(self, names: str, name: str) -> str:
        return f"coalesce(array_contains({names}, {self.text(name)}), false)"

    def those(self, names: Sequence[str]) -> str:
        return f"nullif(filter(array({', '.join(names)}), each -> each IS NOT NULL), array())"

    def either(self, one: str, other: str) -> str:
        return f"array_union({one}, {other})"

    def both(self, one: str, other: str) -> str:
        return f"array_intersect({one}, {other})"

    def last_known(self, value: str, window: str) -> str:
        return f"last_value({value}) IGNORE NULLS OVER ({window})"

    def fail(self, message: str) -> str:
        return f"raise_error({self.text(message)})"

    def delta(self, place: str, version: int) -> str:
        """The rows of a version of a Delta table."""
        return f"SELECT * FROM delta.{self.name(place)} VERSION AS OF {version}"


DIALECTS: dict[str, Dialect] = {"duckdb": DuckDB(), "spark": Spark()}
