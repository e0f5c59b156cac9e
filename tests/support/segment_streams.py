"""Directories of segments: of made-up streams, and of random ones that are cut anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, read_segment, write_segment
from support.capturing import committed
from support.streams import Stream

__all__ = [
    "ORDERS",
    "SOURCE",
    "MadeSegments",
    "cut_stream",
    "ids_in",
    "made",
    "names_in",
    "ranges_in",
    "rows_in",
    "table_of",
]

SOURCE = Source("1", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


class MadeSegments:
    """Segments of a made-up stream."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = directory
        self.state: pgo.StreamState | None = None
        self.writer, self.lsn = Writer(4, streaming="on"), 0

    def cut(self, *parts: list[bytes]) -> Any:
        tagged, self.state = pgo.tag([message for part in parts for message in part], self.state)
        return write_segment(self.directory, tagged, self.state, source=SOURCE, end_lsn=self.lsn + 8)

    def commit(self, *ids: int, spec: RelationSpec = ORDERS) -> list[bytes]:
        self.lsn += 100
        wal = self.writer.begin(self.lsn, self.lsn, 0)
        for each in ids:
            values = [str(each), *("note" if c.type_oid == 25 else None for c in spec.columns[1:])]
            wal += self.writer.change(spec, "insert", new=values)
        return wal + self.writer.commit(self.lsn, self.lsn + 8, 0)

    def block(self, xid: int, *ids: int) -> list[bytes]:
        wal = self.writer.stream_start(xid)
        for each in ids:
            wal += self.writer.change(ORDERS, "insert", new=[str(each), "x"], xid=xid)
        return wal + self.writer.stream_stop()

    def stream_commit(self, xid: int) -> list[bytes]:
        self.lsn += 100
        return self.writer.stream_commit(xid, self.lsn, self.lsn + 8, 0)


@pytest.fixture
def made(tmp_path: Path) -> MadeSegments:
    return MadeSegments(tmp_path)


def cut_stream(
    directory: Path, stream: Stream, cuts: set[int], catalog: pgo.Catalog | None = None, **layout: int
) -> list[Path]:
    """Segments of a stream, cut at these messages and where a session starts."""
    state, paths = pgo.StreamState() if catalog is None else pgo.StreamState(catalog=catalog), []
    ends = sorted({*cuts, *stream.sessions, len(stream.payloads)} - {0})
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin in stream.sessions:
            decoder = pgo.Decoder(state=state)
            decoder.start_session()
            state = decoder.state
        tagged, state = pgo.tag(stream.payloads[begin:end], state, lsn=stream.lsns[begin:end])
        if tagged.num_rows:
            paths.append(Path(write_segment(directory, tagged, state, source=SOURCE, **layout)))
    return paths


def table_of(oid: int, columns: int = 3) -> RelationSpec:
    names = ("id", *(f"column {k}" for k in range(columns)))
    return RelationSpec(
        oid, "public", f"t{oid}", tuple(ColumnSpec(name, 23, key=name == "id") for name in names)
    )


def rows_in(directory: Path | str) -> pa.Table:
    return pa.concat_tables([read_segment(each.path) for each in list_segments(directory)]).combine_chunks()


def ids_in(directory: Path) -> list[int]:
    """The ids of the committed rows of `ORDERS`."""
    ids: list[int] = committed(directory).table("public.orders").column("id").to_pylist()
    return ids


def ranges_in(directory: Path | str) -> list[tuple[int, int]]:
    return [(each.first_seq, each.last_seq) for each in list_segments(directory)]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.parquet"))
