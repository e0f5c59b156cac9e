"""Divides the rows of a table by the values of its partition columns, and names the directories of partitions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa

__all__ = ["MOST_PARTITIONS", "Partitioning", "check_partition_columns", "divide"]

# The most partitions of a table in one task. Every partition has its own file in every task.
MOST_PARTITIONS = 10_000
# The name that Spark and Hive give the partition of nulls.
_NULL = "__HIVE_DEFAULT_PARTITION__"
# Characters that Spark encodes in directory names.
_ESCAPED = re.compile("[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")
# The longest name in file systems, in bytes.
_LONGEST_NAME = 255
# Parquet files have no statistics of texts of more than some 4,000 bytes, which Iceberg's partitions come from.
_LONGEST_TEXT = 1000


@dataclass(frozen=True)
class Partitioning:
    """How a table is partitioned.

    Attributes:
        columns: the partition columns; empty if the table is not partitioned.
        directories: whether partitions are directories, such as `day=2024-02-29/country=DE`.
        stored: whether the files have the partition columns, too.
    """

    columns: tuple[str, ...]
    directories: bool
    stored: bool

    def directory(self, values: tuple[str | None, ...]) -> str:
        """The directory of a partition, with a slash at its end; empty if partitions have no directories.

        >>> Partitioning(("day", "a/b"), True, False).directory(("2024-02-29", None))
        'day=2024-02-29/a%2Fb=__HIVE_DEFAULT_PARTITION__/'

        Raises:
            ValueError: if a value is too long for the name of a directory.
        """
        if not self.directories:
            return ""
        names = []
        for column, value in zip(self.columns, values, strict=True):
            name = f"{_escaped(column)}={_NULL if value is None else _escaped(value)}"
            if len(name.encode()) > _LONGEST_NAME:
                raise ValueError(
                    f"a value of the partition column {column!r} is too long for the name of a directory: choose "
                    "another column for partition_by"
                )
            names.append(f"{name}/")
        return "".join(names)


def check_partition_columns(schema: pa.Schema, columns: tuple[str, ...], table: str) -> None:
    """Checks that a table can be partitioned by these columns.

    Args:
        schema: the table's columns.
        columns: the partition columns; empty if the table is not partitioned.
        table: the table's name, for errors.

    Raises:
        ValueError: if it cannot.
    """
    if len(set(columns)) < len(columns):
        raise ValueError("partition_by names a column twice")
    for name in columns:
        if name not in schema.names:
            raise ValueError(
                f"{table} has no column {name!r} to partition by. If only some tables have the column, name them: "
                f"partition_by={{'schema.table': [{name!r}]}}"
            )
        kind = schema.field(name).type
        plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_string, pa.types.is_date32)
        if not any(is_kind(kind) for is_kind in plain):
            raise ValueError(
                f"{table} cannot be partitioned by {name!r}, which is {kind}: partition columns are booleans, whole "
                "numbers, texts or dates"
            )
    if set(columns) == set(schema.names):
        raise ValueError(f"{table} has no column but those of partition_by: leave one out")


def divide(
    rows: pa.Table, partitioning: Partitioning | None, table: str
) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yields (values, rows) for all partitions. The rows of a partition keep their order.

    Without partition columns, all rows are one partition without values. `table` names the table in errors.

    Raises:
        ValueError: if a value cannot be stored in tables of this format.
    """
    if partitioning is None or not partitioning.columns or not rows.num_rows:
        yield (), rows
        return
    codes = _codes(rows, partitioning.columns)
    order = np.argsort(codes, kind="stable")
    begins = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(order)]
    if len(begins) > 2:
        rows = rows.combine_chunks().take(pa.array(order))
    for begin, end in itertools.pairwise(begins):
        part = rows.slice(begin, end - begin)
        values = tuple(_value(part, name, partitioning, table) for name in partitioning.columns)
        yield values, part if partitioning.stored else part.drop_columns(list(partitioning.columns))


def _codes(rows: pa.Table, columns: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers for rows, equal within a partition."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        column = pa.concat_arrays(rows.column(name).chunks)
        encoded = column.dictionary_encode(null_encoding="encode")
        wide = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Numbers without gaps stay small, however many columns there are.
        codes = np.unique(wide, return_inverse=True)[1].astype(np.int64)
    return codes


def _value(rows: pa.Table, column: str, partitioning: Partitioning, table: str) -> str | None:
    """The text of the common value of all rows."""
    try:
        value = rows.column(column)[0].as_py()
    except (ValueError, OverflowError):
        raise ValueError(
            f"the partition column {column!r} of {table} has a date that is not between the years 1 and 9999: choose "
            "another column for partition_by"
        ) from None
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    text = str(value)
    # Readers would take this text for null.
    if not partitioning.stored and text in ("", _NULL):
        raise ValueError(
            f"the partition column {column!r} of {table} has {f'the text {_NULL}' if text else 'an empty text'}, "
            "which readers of this format take for null: choose another column for partition_by, or format='iceberg'"
        )
    if len(text.encode()) > _LONGEST_TEXT:
        raise ValueError(
            f"the partition column {column!r} of {table} has a text of more than {_LONGEST_TEXT:,} bytes: choose "
            "another column for partition_by"
        )
    return text


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
