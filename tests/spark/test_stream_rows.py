"""What a range of positions holds, over random streams cut anywhere, against the slow decoder. Needs no Spark session."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

import pgoutput_fast as pgo
from cells.nested import DESCRIBED
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, list_segments, write_segment
from pgoutput_fast.segments.tail import SegmentsGoneError, SegmentStream
from pgoutput_fast.spark.source.plan import SourcePlan, TablePlan
from pgoutput_fast.spark.source.read import ManyRows
from pgoutput_fast.spark.source.stream_rows import RangeRows
from pgoutput_fast.spark.tasks.rows import chosen_rows
from reference import messages as reference
from reference import output
from support.forms import and_slow
from support.streams import RandomChoices, Stream, make_stream

SOURCE = Source("1", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),))


def _written(stream: Stream, directory: Path, cuts: set[int], row_group_bytes: int) -> list[int]:
    """The stream in segments that end at `cuts` and where sessions start; gives the positions behind them."""
    state = pgo.StreamState()
    ends = sorted({*cuts, *stream.sessions, len(stream.payloads)} - {0})
    begin = 0
    for end in ends:
        if begin in stream.sessions:
            decoder = pgo.Decoder(state=state)
            decoder.start_session()
            state = decoder.state
        tagged, state = pgo.tag(stream.payloads[begin:end], state, lsn=stream.lsns[begin:end])
        sizes = {"relation_bytes": row_group_bytes, "row_group_bytes": row_group_bytes}
        write_segment(directory, tagged, state, source=SOURCE, **sizes)
        begin = end
    return ends


def _ranges(directory: Path, oids: tuple[int, ...], *, committed: bool) -> tuple[SegmentStream, RangeRows]:
    table = TablePlan("t", oids, (), None)  # type: ignore[arg-type]  # nothing is decoded here
    plan = SourcePlan((str(directory),), (table,), False, "_", committed, 1 << 20, StructType())
    segments = SegmentStream(str(directory))
    return segments, RangeRows(segments, plan)


def _rows(parts: list[ManyRows]) -> list[tuple[int, int, int | None]]:
    """(seq, kind, commit_lsn) of what tasks would decode."""
    found = []
    for part in parts:
        for piece in part.pieces:
            with pq.ParquetFile(piece.path) as file:
                for k in piece.row_groups:
                    rows = chosen_rows(
                        file.read_row_group(k).cast(pgo.TAGGED_SCHEMA), piece.bounds, part.outcomes
                    )
                    found += [
                        (r["seq"], r["kind"], r["commit_lsn"]) for r in rows.to_pylist() if r["kind"] != 84
                    ]
    return sorted(found)


@pytest.mark.parametrize("transactions", and_slow(["committed"], ["as_sent"]))
def test_ranges_hold_what_commits_in_them(transactions: str) -> None:
    older = streams = 0
    for seed in range(50):
        choices = RandomChoices(seed)
        stream = make_stream(choices, 3 + choices.below(10))
        if len(stream.payloads) < 2:
            continue
        try:
            slow = reference.decode(
                stream.payloads,
                stream.lsns,
                sessions=stream.sessions,
                types=DESCRIBED,
                transactions=transactions,
            )
        except output.ReferenceError:
            continue
        streams += 1
        cuts = {choices.below(len(stream.payloads)) for _ in range(choices.below(8))}
        with tempfile.TemporaryDirectory() as name:
            ends = _written(stream, Path(name), cuts, 1 if choices.below(2) else 1 << 20)
            oids = tuple(range(16384, 16390))
            segments, ranges = _ranges(Path(name), oids, committed=transactions == "committed")
            # Some of the ends, and a beginning in the middle of a segment.
            begin = choices.below(ends[0])
            borders = [begin, *(end for end in ends[:-1] if choices.below(2)), ends[-1]]
            for start, end in pairwise(borders):
                parts = ranges.partitions(ranges.segments(start, end), start, end)
                assert _rows(parts) == _expected(slow, start, end, transactions), (seed, start, end)
                older += any(
                    int(Path(piece.path).name[:20]) < start - begin for part in parts for piece in part.pieces
                )
                # Again, and by somebody who never saw what came before.
                _, fresh = _ranges(Path(name), oids, committed=transactions == "committed")
                assert _described(fresh.partitions(fresh.segments(start, end), start, end)) == _described(
                    parts
                )
            assert segments.end() == len(stream.payloads)
    assert streams > 25
    assert older > 2 or transactions == "as_sent"


def _described(parts: list[ManyRows]) -> str:
    pieces = [
        (each.path, each.row_groups, dict(each.bounds), part.outcomes and part.outcomes.to_pylist())
        for part in parts
        for each in part.pieces
    ]
    return json.dumps(pieces, default=str)


def _expected(
    slow: output.Decoded, start: int, end: int, transactions: str
) -> list[tuple[int, int, int | None]]:
    kinds = {"insert": 73, "update_postimage": 85, "delete": 68}
    commits = {row["txn"]: row["at_seq"] for row in slow.outcomes if row["outcome"] == "committed"}
    found = []
    for row in slow.rows:
        at = row["_seq"] if transactions == "as_sent" else commits[row["_txn"]]
        if start <= at < end and row["_change_type"] in kinds:
            found.append((row["_seq"], kinds[row["_change_type"]], row["_commit_lsn"]))
    return sorted(found)


def test_what_is_opened_does_not_grow_with_what_was(tmp_path: Path) -> None:
    """A batch looks into its own segments, and into those that a transaction lies in."""
    writer, state = Writer(), None
    for n in range(50):
        wal = writer.begin(700 + n, 100 * n + 10, 0) + writer.change(ORDERS, "insert", new=[str(n)])
        wal += writer.commit(100 * n + 10, 100 * n + 18, 0)
        tagged, state = pgo.tag(wal, state)
        write_segment(tmp_path, tagged, state, source=SOURCE)
    listed = list_segments(tmp_path)
    for old in listed[:45]:
        Path(old.path).write_bytes(b"nobody looks here")
    _, ranges = _ranges(tmp_path, (ORDERS.oid,), committed=True)
    start, end = listed[47].first_seq, listed[49].last_seq + 1
    parts = ranges.partitions(ranges.segments(start, end), start, end)
    assert [seq for seq, _, _ in _rows(parts)] == [listed[k].last_seq - 1 for k in (47, 48, 49)]
    # Small ones share a task.
    assert len(parts) == 1
    assert len(parts[0].pieces) == 3


def test_what_is_gone_is_said(tmp_path: Path) -> None:
    writer, state = Writer(2, streaming="on"), None
    wal = writer.stream_start(7) + writer.change(ORDERS, "insert", new=["1"], xid=7) + writer.stream_stop()
    for part in (wal, writer.begin(8, 50, 0) + writer.commit(50, 58, 0), writer.stream_commit(7, 60, 68, 0)):
        tagged, state = pgo.tag(part, state)
        write_segment(tmp_path, tagged, state, source=SOURCE)
    listed = list_segments(tmp_path)
    stream, ranges = _ranges(tmp_path, (ORDERS.oid,), committed=True)
    assert (stream.begin(), stream.end()) == (0, 7)
    Path(listed[0].path).unlink()
    inside = ranges.segments(6, 7)
    with pytest.raises(
        SegmentsGoneError, match=r"lacks messages 0 to 3: .* began at message 0 commits only now"
    ):
        ranges.partitions(inside, 6, 7)
    stream.listed(fresh=True)
    with pytest.raises(SegmentsGoneError, match="lacks messages 2 to 3: "):
        ranges.segments(2, 7)
    with pytest.raises(SegmentsGoneError, match="lacks messages 7 to 8: "):
        ranges.segments(4, 9)
    assert ranges.segments(5, 5) == []
    Path(listed[1].path).rename(tmp_path / f"{9:020}-{10:020}.parquet")
    with pytest.raises(ValueError, match="has messages 4 to 5: somebody renamed it"):
        ranges.segments(9, 10)
    tagged, _ = pgo.tag(wal)
    write_segment(
        tmp_path / "elsewhere.parquet", tagged, pgo.StreamState.from_json(_.to_json()), source=SOURCE
    )
    with pytest.raises(ValueError, match=r"elsewhere\.parquet does not have the name of a segment"):
        stream.listed(fresh=True)
    assert isinstance(tagged, pa.RecordBatch)
