"""Streams of `format("pgoutput")` that name segments instead of reading them: the option `emit` set to `files`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.protocol.limits import SPARK_PARTITION_BYTES
from pgoutput_fast.spark.source.plan import STREAM_OPTIONS, SourcePlan
from pgoutput_fast.spark.source.stream import StreamReader
from pgoutput_fast.spark.source.stream_plan import plan_stream
from pgoutput_fast.spark.types import spark_schema

__all__ = ["EMITTED_SCHEMA", "emits_files", "files_schema", "make_files_reader"]

# A row per segment of a batch: the stream's directory, the segment's path, and the first and the last ordinal of its
# messages in the batch.
EMITTED_SCHEMA = pa.schema(
    [("directory", pa.string()), ("path", pa.string()), ("first", pa.int64()), ("last", pa.int64())]
)
_OPTIONS = ("path", "emit", *STREAM_OPTIONS)


def emits_files(options: Mapping[str, str]) -> bool:
    """Whether the query wants the names of segments.

    Raises:
        ValueError: if the option `emit` has another value than `rows` and `files`.
    """
    emit = {key.lower(): value for key, value in options.items()}.get("emit", "rows")
    if emit not in ("rows", "files"):
        raise ValueError(f"option emit must be 'rows' or 'files', not {emit!r}")
    return emit == "files"


def files_schema() -> StructType:
    """Spark's schema of the rows."""
    return spark_schema(EMITTED_SCHEMA)


def make_files_reader(options: Mapping[str, str], schema: StructType) -> FilesReader:
    """Makes the reader.

    Raises:
        ValueError: for options that only a query of rows has, or that are wrong.
    """
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(key for key in given if key not in _OPTIONS and not key.startswith("__"))
    if unknown:
        raise ValueError(
            f"with emit=files, format pgoutput has no option {', '.join(map(repr, unknown))}; there is "
            f"{', '.join(_OPTIONS)}. Pass what is decoded to table_sink"
        )
    if "path" not in given:
        raise ValueError("format pgoutput needs the path of segments: load(path)")
    source = SourcePlan((given["path"],), (), False, "_", True, SPARK_PARTITION_BYTES, schema)
    return FilesReader(plan_stream(options, schema, source), schema)


@dataclass
class _Names(InputPartition):
    """The rows of a batch."""

    rows: tuple[tuple[str, str, int, int], ...]


class FilesReader(StreamReader):
    """Follows the segments that a capture writes, and yields their names."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the segments between two positions."""
        self._at = end
        begin, behind = start["seq"], end["seq"]
        if begin >= behind:
            return []
        directory = self._resolved.directory
        rows = [
            (directory, each.name, max(each.first_seq, begin), min(each.last_seq, behind - 1))
            for each in self._segments.between(begin, behind)
        ]
        return [_Names(tuple(rows))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the names."""
        assert isinstance(partition, _Names)
        columns = [
            pa.array([row[k] for row in partition.rows], field.type) for k, field in enumerate(EMITTED_SCHEMA)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=EMITTED_SCHEMA)
