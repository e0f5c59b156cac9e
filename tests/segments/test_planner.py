"""What tasks read of a span of messages, over random streams cut anywhere, against the slow decoder."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.nested import DESCRIBED
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Segment, Source, list_segments, write_segment
from pgoutput_fast.segments.planner import (
    ReadSpec,
    Span,
    bytes_per_core,
    bytes_per_partition,
    outcomes_of_span,
    plan_read,
)
from pgoutput_fast.segments.tail import SegmentsGoneError, SegmentStream
from pgoutput_fast.spark.tasks.rows import ChangesBetween, changes_of
from reference import messages as reference
from reference import output
from support.forms import and_slow
from support.streams import RandomChoices, Stream, make_stream

SOURCE = Source("1", "shop", "slot")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),))
OTHERS = RelationSpec(16402, "public", "others", (ColumnSpec("id", 23, key=True),))


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


def _planned(
    stream: SegmentStream, start: int, end: int, oids: Collection[int], *, committed: bool = True
) -> list[ReadSpec]:
    """The tasks of a batch of a stream."""
    span, inside = Span(start, end - 1), stream.footers(start, end)
    earlier, outcomes = [], None
    if committed:
        earlier, outcomes = outcomes_of_span(inside, span, stream.outcomes, stream.footers)
    relations = dict.fromkeys(oids, 0)
    return plan_read([*earlier, *inside], span, relations, outcomes, {}, bytes_per_partition(1 << 20))


def _rows(specs: list[ReadSpec]) -> list[tuple[int, int, int | None]]:
    """(seq, kind, commit_lsn) of what tasks would decode."""
    found = []
    for spec in pickle.loads(pickle.dumps(specs)):
        for changes in changes_of(spec):
            rows = changes if spec.outcomes is None else spec.outcomes.released(changes)
            found += [(r["seq"], r["kind"], r["commit_lsn"]) for r in rows.to_pylist() if r["kind"] != 84]
    return sorted(found)


@pytest.mark.unsanitized  # hundreds of plans, in Python
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
            oids = range(16384, 16390)
            committed = transactions == "committed"
            segments = SegmentStream(name)
            # Some of the ends, and a beginning in the middle of a segment.
            begin = choices.below(ends[0])
            borders = [begin, *(end for end in ends[:-1] if choices.below(2)), ends[-1]]
            for start, end in pairwise(borders):
                specs = _planned(segments, start, end, oids, committed=committed)
                assert _rows(specs) == _expected(slow, start, end, transactions), (seed, start, end)
                older += any(
                    int(Path(part.path).name[:20]) < start - begin for spec in specs for part in spec.parts
                )
                # Again, and by somebody who never saw what came before.
                again = _planned(SegmentStream(name), start, end, oids, committed=committed)
                assert _described(again) == _described(specs)
            assert segments.end() == len(stream.payloads)
    assert streams > 25
    assert older > 2 or transactions == "as_sent"


def _described(specs: list[ReadSpec]) -> str:
    parts = [
        (each.path, each.row_groups, dict(each.bounds), spec.outcomes and _values(spec.outcomes))
        for spec in specs
        for each in spec.parts
    ]
    return json.dumps(parts, default=str)


def _values(outcomes: Any) -> list[Any]:
    return [outcomes.txns.tolist(), outcomes.at_seq.tolist(), outcomes.rolled_back]


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
    start, end = listed[47].first_seq, listed[49].last_seq + 1
    specs = _planned(SegmentStream(str(tmp_path)), start, end, {ORDERS.oid})
    assert [seq for seq, _, _ in _rows(specs)] == [listed[k].last_seq - 1 for k in (47, 48, 49)]
    # Small ones share a task.
    assert len(specs) == 1
    assert len(specs[0].parts) == 3


def test_what_is_gone_is_said(tmp_path: Path) -> None:
    writer, state = Writer(2, streaming="on"), None
    wal = writer.stream_start(7) + writer.change(ORDERS, "insert", new=["1"], xid=7) + writer.stream_stop()
    for part in (wal, writer.begin(8, 50, 0) + writer.commit(50, 58, 0), writer.stream_commit(7, 60, 68, 0)):
        tagged, state = pgo.tag(part, state)
        write_segment(tmp_path, tagged, state, source=SOURCE)
    listed = list_segments(tmp_path)
    stream = SegmentStream(str(tmp_path))
    assert (stream.begin(), stream.end()) == (0, 7)
    Path(listed[0].path).unlink()
    with pytest.raises(SegmentsGoneError, match="lacks messages 0 to 3: "):
        _planned(stream, 6, 7, {ORDERS.oid})
    stream.listed(fresh=True)
    with pytest.raises(SegmentsGoneError, match="lacks messages 2 to 3: "):
        stream.footers(2, 7)
    with pytest.raises(SegmentsGoneError, match="lacks messages 7 to 8: "):
        stream.footers(4, 9)
    assert stream.footers(5, 5) == []
    Path(listed[1].path).rename(tmp_path / f"{9:020}-{10:020}.parquet")
    with pytest.raises(ValueError, match="has messages 4 to 5: somebody renamed it"):
        stream.footers(9, 10)
    tagged, _ = pgo.tag(wal)
    write_segment(
        tmp_path / "elsewhere.parquet", tagged, pgo.StreamState.from_json(_.to_json()), source=SOURCE
    )
    with pytest.raises(ValueError, match=r"elsewhere\.parquet does not have the name of a segment"):
        stream.listed(fresh=True)
    assert isinstance(tagged, pa.RecordBatch)


def _transactions(directory: Path, count: int, rows: int = 1) -> list[Segment]:
    """Segments of one transaction of two tables, with a row group for each table."""
    writer, state = Writer(), None
    for n in range(count):
        wal = writer.begin(700 + n, 100 * n + 10, 0)
        for relation in (ORDERS, OTHERS):
            for k in range(rows):
                wal += writer.change(relation, "insert", new=[str(k)])
        tagged, state = pgo.tag(wal + writer.commit(100 * n + 10, 100 * n + 18, 0), state)
        write_segment(directory, tagged, state, source=SOURCE, relation_bytes=1)
    return list_segments(directory)


@pytest.mark.parametrize("committed", [True, False])
def test_tables_with_other_positions(tmp_path: Path, committed: bool) -> None:
    """A new table gets everything; of the other one, only segments after its position are read."""
    segments = _transactions(tmp_path, 6)
    stream, last = SegmentStream(str(tmp_path)), segments[-1].last_seq
    outcomes = stream.outcomes(stream.footers(0, last + 1)) if committed else None
    relations = {ORDERS.oid: 0, OTHERS.oid: segments[3].last_seq + 1}
    specs = plan_read(segments, Span(0, last), relations, outcomes, {}, bytes_per_core(1))
    names = [Path(part.path).name for spec in specs for part in spec.parts for _ in part.row_groups]
    counts = [names.count(Path(each.path).name) for each in segments]
    # The first one has a row group with the descriptions of both tables.
    assert counts[1:] == [1, 1, 1, 2, 2]
    after = [
        row["seq"]
        for spec in specs
        for rows in changes_of(spec)
        for row in ChangesBetween(spec.outcomes, relations[OTHERS.oid], last).of(rows).to_pylist()
        if row["relation"] == OTHERS.oid
    ]
    assert after == [each.first_seq + 2 for each in segments[4:]]


def test_bounds_leave_segments_out(tmp_path: Path) -> None:
    segments = _transactions(tmp_path, 6)
    span, bounds = Span(0, segments[-1].last_seq), {"seq": (segments[2].first_seq, segments[3].last_seq)}
    specs = plan_read(segments, span, {ORDERS.oid: 0}, None, bounds, bytes_per_partition(1))
    assert [Path(part.path).name for spec in specs for part in spec.parts] == [
        Path(each.path).name for each in segments[2:4]
    ]
    within = Span(segments[1].first_seq + 1, segments[4].last_seq)
    specs = plan_read(segments, within, {ORDERS.oid: 0}, None, {}, bytes_per_partition(1))
    assert [dict(part.bounds) for spec in specs for part in spec.parts] == [
        {"seq": tuple(within)},
        {},
        {},
        {},
    ]


@pytest.mark.parametrize(
    ("task_bytes", "most"),
    [(bytes_per_partition(1), 1), (bytes_per_partition(1 << 26), 1 << 20), (bytes_per_core(4), None)],
)
def test_the_sizes_of_tasks(tmp_path: Path, task_bytes: Any, most: int | None) -> None:
    segments = _transactions(tmp_path, 40, rows=50)
    sizes = {str(each.path): [group.nbytes for group in each.row_groups] for each in segments}
    relations = {ORDERS.oid: 0, OTHERS.oid: 0}
    specs = plan_read(segments, Span(0, segments[-1].last_seq), relations, None, {}, task_bytes)
    tasks = [[(part.path, k) for part in spec.parts for k in part.row_groups] for spec in specs]
    read = [each for task in tasks for each in task]
    assert read == sorted(set(read))
    total = sum(sizes[path][k] for path, k in read)
    limit = total // 8 if most is None else most
    for task in tasks:
        assert len(task) == 1 or sum(sizes[path][k] for path, k in task) <= limit
    assert most != 1 or len(tasks) == len(read)
    assert most is not None or 8 <= len(tasks) <= 16
