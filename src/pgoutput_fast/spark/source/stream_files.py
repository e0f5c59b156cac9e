"""Streams of `format("pgoutput")` that name segments instead of reading them: the option `emit` set to `files`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.protocol.limits import SPARK_PARTITION_BYTES
from pgoutput_fast.spark.source.options import SPARK_NAMES, emitted
from pgoutput_fast.spark.source.plan import STREAM_OPTIONS, SourcePlan
from pgoutput_fast.spark.source.stream import NEW_SOURCES, StreamReader
from pgoutput_fast.spark.source.stream_plan import check_options, plan_stream
from pgoutput_fast.spark.types import spark_schema

__all__ = ["Emitted", "emits_files", "files_schema", "make_files_reader", "read_emitted"]

# A row per segment of a batch: the stream's directory, the segment's path, the first and the last ordinal of its
# messages in the batch, and the ordinal where the query began: null if it is no longer known.
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
_SCHEMA = pa.schema(
    [
        ("directory", pa.string()),
        ("path", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("began", pa.int64()),
    ]
)
# Rows made by a user have only these: then the query began with the batch.
_NEEDED = ("directory", "path", "first", "last")
_OPTIONS = ("path", "emit", "starting", SPARK_NAMES["starting"], *STREAM_OPTIONS)
_LOWER = frozenset(map(str.lower, _OPTIONS))


def emits_files(options: Mapping[str, str]) -> bool:
    """Whether the query requests the names of segments.

    Raises:
        ValueError: as `emitted`.
    """
    return emitted(options) == "files"


def files_schema(options: Mapping[str, str]) -> StructType:
    """Spark's schema of the rows.

    Raises:
        ValueError: for wrong options, or those that only a query of rows has.
    """
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(key for key in given if key not in _LOWER and not key.startswith("__"))
    if unknown:
        raise ValueError(
            f"with emit=files, format pgoutput has no option {', '.join(map(repr, unknown))}; there is "
            f"{', '.join(_OPTIONS)}. Pass what is decoded to table_sink"
        )
    check_options(options)
    return spark_schema(_SCHEMA)


@dataclass(frozen=True)
class Emitted:
    """The content of a batch's rows.

    Attributes:
        directory: the stream's directory.
        first, last: ordinals of the first and the last message of the batch.
        began: ordinal of the first message of the query; None if it is no longer known.
    """

    directory: str
    first: int
    last: int
    began: int | None


def read_emitted(batch: DataFrame, sink: str) -> Emitted | None:
    """Reads the rows of a batch; None if it has none.

    Args:
        batch: the DataFrame passed by `foreachBatch`.
        sink: the name of the function, for the error.

    Raises:
        ValueError: if the query reads something else.
    """
    if tuple(batch.columns) not in (_NEEDED, tuple(_SCHEMA.names)):
        raise ValueError(
            f"{sink} needs the columns {', '.join(_SCHEMA.names)}: read the stream with "
            '.format("pgoutput").option("emit", "files")'
        )
    found = [row.asDict() for row in batch.collect()]
    if not found:
        return None
    first, last = min(row["first"] for row in found), max(row["last"] for row in found)
    began = None if _is_wrapped(batch) else found[0].get("began", first)
    return Emitted(found[0]["directory"], first, last, began)


def _is_wrapped(batch: DataFrame) -> bool:
    """Whether Spark asks for the end of a batch before it passes its position, even after a restart.

    Before 4.2 a setting of Spark for `availableNow` does that. Then new and resumed queries look the same.
    """
    return not NEW_SOURCES and batch.sparkSession.conf.get(_WRAPPER, "false") == "true"


def make_files_reader(options: Mapping[str, str], schema: StructType) -> FilesReader:
    """Makes the reader.

    Raises:
        ValueError: as `files_schema`.
    """
    files_schema(options)
    given = {key.lower(): value for key, value in options.items()}
    source = SourcePlan((given["path"],), (), False, "_", True, SPARK_PARTITION_BYTES, schema)
    return FilesReader(plan_stream(options, schema, source), schema)


@dataclass
class _Names(InputPartition):
    """The rows of a batch."""

    rows: tuple[tuple[str, str, int, int, int | None], ...]


class FilesReader(StreamReader):
    """Follows the segments that a capture writes, and yields their names."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the segments between two positions."""
        begin, stop = self._taken(start, end)
        if begin >= stop:
            return []
        directory, began = self._resolved.directory, self._began_at()
        rows = [
            (directory, each.name, max(each.first_seq, begin), min(each.last_seq, stop - 1), began)
            for each in self._segments.between(begin, stop)
        ]
        return [_Names(tuple(rows))]

    def _began_at(self) -> int | None:
        """Where the query began. The offsets of earlier versions lack this, and options may have changed since."""
        if self._began is None and self._resolved.starting == "earliest" and self._segments.begin() == 0:
            return 0
        return self._began

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the names."""
        assert isinstance(partition, _Names)
        columns = [
            pa.array([row[k] for row in partition.rows], field.type) for k, field in enumerate(_SCHEMA)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
