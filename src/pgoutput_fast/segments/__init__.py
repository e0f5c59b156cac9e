"""Segments: Parquet files of tagged payloads. Their layout lets a reader of one table skip the other tables."""

from pgoutput_fast.segments.compaction import CompactBusyError, Compacted, compact
from pgoutput_fast.segments.listing import list_segments, segment_catalog, segment_outcomes
from pgoutput_fast.segments.read import newest_segment, open_segment, read_segment
from pgoutput_fast.segments.segment import RowGroup, Segment, Source
from pgoutput_fast.segments.write import write_segment

__all__ = [
    "CompactBusyError",
    "Compacted",
    "RowGroup",
    "Segment",
    "Source",
    "compact",
    "list_segments",
    "newest_segment",
    "open_segment",
    "read_segment",
    "segment_catalog",
    "segment_outcomes",
    "write_segment",
]
