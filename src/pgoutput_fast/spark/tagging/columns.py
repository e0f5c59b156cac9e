"""Determines and checks the columns of untagged payloads, and refuses messages without a common order."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, BinaryType, BooleanType, StringType

from pgoutput_fast.spark.tagging.lsns import LSN_TYPES
from pgoutput_fast.spark.tagging.order import quoted

__all__ = ["check_columns", "check_one_order", "find_payload"]

_BYTES = "UTF8_BINARY"  # the collation that sorts by bytes, both here and in Python
# The column of payloads, unless the caller names it: the usual name, and Kafka's.
_PAYLOADS = ("payload", "value")
# Spark's columns of a Kafka topic. None of them orders messages of several partitions: an offset counts within its
# partition, and a timestamp is that of a producer or of a broker, in milliseconds.
_KAFKA = {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType"}
_KAFKA_PLACE = ("topic", "partition", "offset")
_BINARY_AS_TEXT = "spark.sql.parquet.binaryAsString"


def find_payload(df: DataFrame) -> str:
    """Returns the name of the only binary column that is named `payload` or `value`.

    Raises:
        ValueError: if there is none or several; the message lists the columns and their types.
    """
    named = [field for field in df.schema if field.name in _PAYLOADS]
    found = [field.name for field in named if isinstance(field.dataType, BinaryType)]
    if len(found) == 1:
        return found[0]
    binary = [field.name for field in df.schema if isinstance(field.dataType, BinaryType)]
    example = f", for example payload={binary[0]!r}" if binary else ""
    hint = f"; {_text_hint(df)}" if any(isinstance(field.dataType, StringType) for field in named) else ""
    number = "are several binary columns" if found else "is no binary column"
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in df.schema)
    raise ValueError(
        f"there {number} named {' or '.join(_PAYLOADS)}: pass the name of the column of payloads as payload={example}"
        f"{hint}. The columns are: {columns}"
    )


def _text_hint(df: DataFrame) -> str:
    if str(df.sparkSession.conf.get(_BINARY_AS_TEXT)).lower() == "true":
        return f"{_BINARY_AS_TEXT} makes text of the bytes of Parquet files, so read them without it"
    return r"of text such as '\x42...' take unhex(substring(column, 3))"


def check_columns(
    df: DataFrame, order: tuple[str, ...], payload: str, lsn: str | None, session_starts: str | None
) -> None:
    """Checks that each column exists and has a suitable type.

    Raises:
        ValueError: if a column does not exist.
        TypeError: if its type, or its collation, is unsuitable.
    """
    wanted: list[tuple[str, type | tuple[type, ...], str]] = [
        (name, AtomicType, "of a type that has an order") for name in order
    ]
    wanted += [(payload, BinaryType, "binary")]
    if lsn is not None:
        wanted.append((lsn, LSN_TYPES, "an integer, a decimal or a string such as '16/B374D848'"))
    if session_starts is not None:
        wanted.append((session_starts, BooleanType, "boolean"))
    for name, kind, what in wanted:
        if name not in df.columns:
            raise ValueError(f"there is no column {name!r}; there is {', '.join(df.columns)}")
        if not isinstance(df.schema[name].dataType, kind):
            hint = f": {_text_hint(df)}" if name == payload else ""
            raise TypeError(
                f"column {name} must be {what}, not {df.schema[name].dataType.simpleString()}{hint}"
            )
    for name in order:
        collation = getattr(df.schema[name].dataType, "collation", _BYTES)
        if collation != _BYTES:
            raise TypeError(
                f"column {name} has the collation {collation}: order by collate({name}, '{_BYTES}')"
            )


def check_one_order(df: DataFrame, order: tuple[str, ...]) -> None:
    """Checks that rows of Kafka, ordered by Kafka's columns, come from one partition of one topic.

    This is an aggregate over two columns, and runs only if the DataFrame has Kafka's columns and is ordered only by
    these. Files return just these two columns; Kafka itself sends all messages once more.

    Raises:
        ValueError: if they come from several.
    """
    if not set(_KAFKA_PLACE) <= set(df.columns) or not set(order) <= _KAFKA:
        return
    ends = [each(quoted(name)) for name in _KAFKA_PLACE[:2] for each in (F.min, F.max)]
    (row,) = df.agg(*ends).collect()
    several = "topics" if row[0] != row[1] else "partitions of a topic" if row[2] != row[3] else None
    if several is not None:
        one = "topic = ..." if several == "topics" else "partition = 0"
        raise ValueError(
            f"these messages come from several {several}, and {', '.join(order)} does not order them: the messages of "
            "one slot have one order, and Kafka keeps none between partitions. If each has a slot of its own, tag each "
            f"alone: df.where('{one}'). If one slot was spread over them, order by a column that orders all "
            "messages, such as a number that the producer put into a header; and send the slot to one partition"
        )
