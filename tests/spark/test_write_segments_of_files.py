"""Segments of payloads in files: several tasks read them in order."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode, segments
from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments, read_segment
from pgoutput_fast.spark.dataframes.tagged import DumpRows
from pgoutput_fast.spark.tagging import dump as dumps
from pgoutput_fast.spark.tagging import segments as tagging
from support.forms import and_slow
from support.interleaved import everything
from support.spark_segments import assert_as_one_task, dumped, few_tasks, rows_in, tasks_of, with_heartbeats
from support.streams import RandomChoices, make_stream

__all__ = ["few_tasks"]


@pytest.mark.parametrize("quarantine", and_slow([False], [True]))
def test_several_tasks_read_files_in_order(spark: Any, tmp_path: Path, quarantine: bool) -> None:
    """The same rows and states as those of one task, and repeated calls add nothing."""
    stream = everything()
    payloads, sessions = stream.payloads, stream.sessions
    if quarantine:
        payloads = [*payloads[:30], b"", b"?", *payloads[30:]]
        sessions = {session + 2 for session in sessions}
    dump, directory = dumped(tmp_path / "dump", payloads, sessions), tmp_path / "segments"
    given: Any = {"session_starts": "starts", "on_error": "quarantine" if quarantine else "raise"}
    wal = pgspark.tag(dump, "place", spark=spark, **given)
    assert tasks_of(wal) > 2
    paths = pgspark.write_segments(wal, directory, segment_bytes=300)
    found = list_segments(directory)
    assert [segment.path for segment in found] == paths
    assert len(found) > 3
    assert_as_one_task(directory, wal)
    if not quarantine:
        assert_states(directory, payloads, sessions)
    assert pgspark.write_segments(wal, directory, segment_bytes=300) == []


def assert_states(directory: Path, payloads: list[bytes], sessions: Any) -> None:
    """Asserts that segments have the states of the stream, without relations that come later."""
    for segment in list_segments(directory):
        state = state_of_some(payloads[: segment.last_seq + 1], sessions)
        # At the cut before a session the mark may be in either segment.
        if segment.last_seq + 1 not in sessions:
            assert segment.state.values == state.values
        assert {each.version for each in segment.catalog.relations} <= {
            each.version for each in state.catalog.relations
        }


def state_of_some(payloads: list[bytes], sessions: Any) -> pgo.StreamState:
    """The state after the first payloads of a stream."""
    state = pgo.StreamState()
    for begin, end in pairwise([0, *sorted(k for k in sessions if 0 < k < len(payloads)), len(payloads)]):
        if begin in sessions:
            decoder = pgo.Decoder(state=state)
            decoder.start_session()
            state = decoder.state
        _, state = pgo.tag(payloads[begin:end], state)
    return state


@pytest.mark.parametrize("stop", [1, 2])
def test_a_call_that_stops_is_continued_by_several_tasks(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """What became visible stays. The next call reads from the range with the last message on."""
    stream = everything()
    dump, directory = dumped(tmp_path / "dump", stream.payloads, stream.sessions, 3), tmp_path / "segments"
    monkeypatch.setattr(dumps, "bytes_per_core", lambda cores: lambda total: (1, 1))
    wal = pgspark.tag(dump, "place", session_starts="starts", spark=spark)
    tasks = tasks_of(wal, 100)
    assert tasks > 6
    publish, joined = tagging._publish, DumpRows.joined
    calls: list[int] = []
    read: list[tuple[int, int]] = []

    def stopping(*given: Any) -> bool:
        calls.append(len(list_segments(directory)))
        if len(calls) == stop + 1:
            raise OSError("stopped")
        return publish(*given)

    def recorded(*given: Any) -> Any:
        rows, ranges = joined(*given)
        read.extend((each.first, each.end) for each in ranges)
        return rows, ranges

    monkeypatch.setattr(DumpRows, "joined", recorded)
    with monkeypatch.context() as patch:
        patch.setattr(tagging, "_publish", stopping)
        with pytest.raises(OSError, match="stopped"):
            pgspark.write_segments(wal, directory, segment_bytes=100)
    there = [each.path for each in list_segments(directory)]
    assert calls == sorted(set(calls))
    assert 0 < len(there) == calls[-1]
    assert [first for first, _ in read] == [0, *(end for _, end in read[:-1])]
    assert len(read) == 2 * (stop + 1)
    kept = read[2 * stop - 1]
    read.clear()
    pgspark.write_segments(wal, directory, segment_bytes=100)
    assert [each.path for each in list_segments(directory)][: len(there)] == there
    assert kept[0] <= read[0][0] < kept[1]
    assert len(read) >= tasks - 2 * stop
    assert_as_one_task(directory, wal, 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_several_tasks_of_random_streams(spark: Any, tmp_path: Path, seed: int) -> None:
    """A directory is continued, and a repetition continues amid the rows of a task."""
    dice = random.Random(seed)
    stream = make_stream(RandomChoices(seed), 60)
    cut = dice.randrange(len(stream.payloads) // 4, len(stream.payloads) // 2)
    first = dumped(tmp_path / "first", stream.payloads[:cut], stream.sessions, rows=dice.randrange(1, 9))
    sessions = {session - cut for session in stream.sessions}
    then = dumped(tmp_path / "then", stream.payloads[cut:], sessions, rows=dice.randrange(1, 9))
    directory, given = tmp_path / "segments", {"session_starts": "starts", "spark": spark}
    pgspark.write_segments(pgspark.tag(first, "place", **given), directory, segment_bytes=400)
    newest = segments.newest_segment(directory)
    assert newest is not None
    wal = pgspark.tag(then, "place", state=newest.state, **given)
    assert tasks_of(wal, 400) > 2
    written = [Path(each) for each in pgspark.write_segments(wal, directory, segment_bytes=400)]
    whole = dumped(tmp_path / "whole", stream.payloads, stream.sessions)
    assert_as_one_task(directory, pgspark.tag(whole, "place", **given), 400)
    assert_states(directory, stream.payloads, stream.sessions)
    expected = rows_in(directory)
    for path in written[dice.randrange(1, len(written)) :]:
        path.unlink()
    pgspark.write_segments(wal, directory, segment_bytes=400)
    assert rows_in(directory) == expected
    assert list_segments(directory)[-1].state.values == pgspark.state_after(wal).values


@pytest.mark.slow
@pytest.mark.parametrize(("at", "others"), [(2, True), (6, True), (13, True), (13, False)])
def test_several_tasks_that_end_with_messages_without_rows(
    spark: Any, tmp_path: Path, at: int, others: bool
) -> None:
    """One range has only messages that the stream has already. With `others`, each range ends with one."""
    first, second, beat, *more = with_heartbeats(12)
    parts = [first, *(part if others else part[:-1] for part in (second, *more))]
    parts[at:at] = [beat] * 30
    state, begin, directory = None, 0, tmp_path / "segments"
    for number, some in enumerate((parts[:2], parts[2:])):
        (dump := tmp_path / f"dump{number}").mkdir()
        for part in some:
            rows = pa.table(
                {"place": range(begin, begin + len(part)), "payload": pa.array(part, pa.binary())}
            )
            pq.write_table(rows, dump / f"{begin:05}.parquet")
            begin += len(part)
        wal = pgspark.tag(dump, "place", state=state, spark=spark)
        state = pgspark.state_after(wal)
        pgspark.write_segments(wal, directory, segment_bytes=50)
    assert tasks_of(wal, 50) > 3
    (whole := tmp_path / "whole").mkdir()
    payloads = [payload for part in parts for payload in part]
    assert_as_one_task(directory, pgspark.tag(dumped(whole / "dump", payloads), "place", spark=spark), 50)


@pytest.mark.slow
def test_several_tasks_with_a_catalog_that_no_footer_holds(spark: Any, tmp_path: Path) -> None:
    """Each task writes part files. Relations change amid the rows of a task."""
    writer, payloads = encode.Writer(), []
    for n in range(1, 1501):
        columns = [encode.ColumnSpec(f"a_column_of_a_wide_table_{k}", 23) for k in range(5 + n // 1000)]
        table = encode.RelationSpec(20_000 + n % 1000, "public", f"t{n % 1000}", tuple(columns))
        payloads += writer.begin(n, 100 * n, 0) + writer.change(table, "insert", new=["1"] * len(columns))
        payloads += writer.commit(100 * n, 100 * n + 8, 0)
    wal = pgspark.tag(dumped(tmp_path / "dump", payloads, rows=100), "place", spark=spark)
    directory = tmp_path / "segments"
    pgspark.write_segments(wal, directory, segment_bytes=40_000)
    assert tasks_of(wal, 40_000) > 2
    assert len(list((directory / "_catalog").iterdir())) > 2
    assert_as_one_task(directory, wal, 40_000)
    expected = rows_in(directory)
    assert segments.compact(directory, keep=1, grace=0).joined
    assert rows_in(directory) == expected
    assert list_segments(directory)[-1].state.values == pgspark.state_after(wal).values


def test_segments_of_tasks_are_not_small(spark: Any, tmp_path: Path) -> None:
    """Ranges are joined up to the size of a segment, and a range that is larger is cut into equal parts."""
    (dump := tmp_path / "dump").mkdir()
    writer = encode.Writer()
    payloads = [
        writer.message(100 + k, "p", random.Random(k).randbytes(500), transactional=False)[0]
        for k in range(1000)
    ]
    rows = pa.table({"place": range(1000), "payload": pa.array(payloads, pa.binary())})
    pq.write_table(rows, dump / "0.parquet", row_group_size=20)
    wal = pgspark.tag(dump, "place", spark=spark)
    for segment_bytes in (10_000, 100_000, 300_000):
        directory = tmp_path / str(segment_bytes)
        pgspark.write_segments(wal, directory, segment_bytes=segment_bytes)
        tables = [read_segment(each.path) for each in list_segments(directory)]
        sizes = [sum(map(len, table["payload"].to_pylist())) for table in tables]
        assert min(sizes) > segment_bytes / 2
        assert max(sizes) < 2 * segment_bytes


def test_payloads_that_a_file_has_once(spark: Any, tmp_path: Path) -> None:
    """The size of a row group with equal payloads says nothing of theirs."""
    writer, spec = encode.Writer(), encode.RelationSpec(7, "public", "t", (encode.ColumnSpec("note", 25),))
    payloads = writer.begin(1, 1000, 0)
    for k in range(2000):
        payloads += writer.change(spec, "insert", new=[random.Random(k).randbytes(200).hex()])
    payloads += writer.commit(1000, 1008, 0) + writer.begin(2, 2000, 0)
    for _ in range(2000):
        payloads += writer.change(spec, "insert", new=["x" * 400])
    payloads += writer.commit(2000, 2008, 0)
    wal = pgspark.tag(dumped(tmp_path / "dump", payloads, rows=500), "place", spark=spark)
    found = pgspark.write_segments(wal, tmp_path / "segments", segment_bytes=100_000)
    assert 10 <= len(found) <= 40
    assert [row["payload"] for row in rows_in(tmp_path / "segments")] == payloads
