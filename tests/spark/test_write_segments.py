"""Tagged payloads become segments that everything else reads, on a real Spark."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import pgoutput_fast as pgo
from pgoutput_fast import encode, segments
from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog, segment_outcomes
from pgoutput_fast.segments.tail import check_whole
from pgoutput_fast.spark.dataframes.tagged import DumpRows, ends_of, untagged_of
from pgoutput_fast.spark.tagging import dump as dumps
from pgoutput_fast.spark.tagging import segments as tagging
from support.disks import small_disk
from support.forms import and_exhaustive, and_slow
from support.interleaved import everything
from support.lakes import CLUSTER, running, settled, wait_for
from support.segment_streams import SOURCE
from support.streams import RandomChoices, make_stream

# What the driver changes in a directory.
STEPS = ("pgoutput_fast.storage.stores", "_Directory.write,_Directory.rename,_Directory.remove")


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments become visible when as many tasks have ended as there are cores."""
    monkeypatch.setattr(tagging, "_TASKS_PER_CORE", 1)


def frame(spark: Any, payloads: list[bytes], begin: int, end: int, sessions: set[int]) -> Any:
    table = {
        "place": pa.array(range(begin, end), pa.int64()),
        "payload": pa.array(payloads[begin:end], pa.binary()),
        "lsn": pa.array([1000 + k if k % 5 else None for k in range(begin, end)], pa.int64()),
        "starts": pa.array([k in sessions for k in range(begin, end)], pa.bool_()),
    }
    order = list(range(end - begin))
    random.Random(begin).shuffle(order)
    return spark.createDataFrame(pa.table(table).take(pa.array(order, pa.int64()))).repartition(2)


def tagged(
    spark: Any, payloads: list[bytes], begin: int = 0, end: int | None = None, sessions: Any = (), **more: Any
) -> Any:
    df = frame(spark, payloads, begin, len(payloads) if end is None else end, set(sessions))
    return pgspark.tag(df, "place", lsn="lsn", session_starts="starts", **more)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["seq"], row["kind"] != 0, row["relation"] or 0))


def rows_in(directory: Path) -> list[dict[str, Any]]:
    tables = [read_segment(segment.path).to_pylist() for segment in list_segments(directory)]
    return in_order([row for table in tables for row in table])


@pytest.mark.parametrize("segment_bytes", and_slow([300], [1, 1 << 26]))
def test_segments_have_the_rows_the_states_and_the_catalog(
    spark: Any, tmp_path: Path, segment_bytes: int
) -> None:
    """Truncates of several relations and sessions included; the state behind each segment is that of one piece."""
    stream = everything()
    payloads, (session,) = stream.payloads, stream.sessions
    wal = tagged(spark, payloads, sessions=stream.sessions)
    paths = pgspark.write_segments(wal, tmp_path / "segments", segment_bytes=segment_bytes)
    found = list_segments(tmp_path / "segments")
    assert [segment.path for segment in found] == paths
    assert len(found) == (len(payloads) if segment_bytes == 1 else 1 if segment_bytes > 300 else len(found))
    assert len(found) > 3 or segment_bytes > 300
    assert rows_in(tmp_path / "segments") == in_order(wal.toArrow().to_pylist())
    lsns = [1000 + k if k % 5 else None for k in range(len(payloads))]
    for segment in found:
        end = segment.last_seq + 1
        _, state = pgo.tag(payloads[: min(end, session)], lsn=lsns[: min(end, session)])
        if end > session:
            decoder = pgo.Decoder(state=state)
            decoder.start_session()
            _, state = pgo.tag(payloads[session:end], decoder.state, lsn=lsns[session:end])
        values = segment.state.values
        assert values is not None
        # At the cut before a session the mark may be in either segment.
        if end != session:
            assert values == state.values
    everywhere = segment_catalog(tmp_path / "segments")
    assert {each.version for each in everywhere.relations} == {
        each.version for each in pgspark.read_catalog(wal).relations
    }
    assert segment_outcomes(tmp_path / "segments").num_rows == pgspark.outcomes(wal).count()


def dumped(directory: Path, payloads: list[bytes], sessions: Any = (), rows: int = 7) -> Path:
    """Files with the payloads in order, with three row groups each. The names of the files have another order."""
    directory.mkdir()
    for at in range(0, len(payloads), 3 * rows):
        places = range(at, min(at + 3 * rows, len(payloads)))
        table = {
            "place": pa.array(places, pa.int64()),
            "payload": pa.array([payloads[k] for k in places], pa.binary()),
            "starts": pa.array([k in sessions for k in places], pa.bool_()),
        }
        pq.write_table(pa.table(table), directory / f"{99_997 - at:05}.parquet", row_group_size=rows)
    return directory


def assert_as_one_task(directory: Path, wal: Any, segment_bytes: int = 300) -> None:
    """Asserts that segments of several tasks have what the segments of one have, which gets the rows from Spark."""
    alone = directory.with_name(f"{directory.name} of one task")
    pgspark.write_segments(wal.select("*"), alone, segment_bytes=segment_bytes, state=ends_of(wal).before)
    assert rows_in(directory) == rows_in(alone)
    found, expected = list_segments(directory), list_segments(alone)
    assert segment_catalog(directory) == segment_catalog(alone)
    assert segment_outcomes(directory) == segment_outcomes(alone)
    # The last tasks may have had only messages without rows: then a note says where the stream continues.
    note = directory / "_next.json"
    noted = {"next_seq": json.loads(note.read_text())["next_seq"]} if note.exists() else {}
    assert found[-1].state.values | noted == pgspark.state_after(wal).values
    assert (found[0].first_seq, found[-1].last_seq) == (expected[0].first_seq, expected[-1].last_seq)
    check_whole(found)
    assert not [each for each in os.listdir(directory) if each.startswith(".")]


def tasks_of(wal: Any, segment_bytes: int = 300) -> int:
    return len(untagged_of(wal).payloads.joined(0, 10_000, segment_bytes)[1])  # type: ignore[union-attr]


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
    first, second, beat, *more = _with_heartbeats(12)
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


@pytest.mark.slow
def test_the_source_reads_them(spark: Any, tmp_path: Path) -> None:
    stream = everything()
    wal = tagged(spark, stream.payloads, sessions=stream.sessions)
    pgspark.write_segments(wal, tmp_path, segment_bytes=300)
    assert len(list_segments(tmp_path)) > 2
    pgspark.register(spark)
    reader = spark.read.format("pgoutput").option("schema_mode", "union").option("table", "public.t")
    for transactions in ("as_sent", "committed"):
        got = reader.option("transactions", transactions).load(str(tmp_path)).orderBy("_seq").collect()
        expected = pgspark.changes(wal, "public.t", transactions=transactions, schema_mode="union")
        assert got
        assert got == expected.orderBy("_seq").collect()


@pytest.mark.parametrize("seed", and_slow([0], [1, 2, 3]))
def test_a_directory_is_continued(spark: Any, tmp_path: Path, seed: int) -> None:
    stream = make_stream(RandomChoices(seed), 25)
    cut = random.Random(seed).randrange(1, len(stream.payloads) - 1)
    first = tagged(spark, stream.payloads, 0, cut, stream.sessions)
    pgspark.write_segments(first, tmp_path, segment_bytes=200)
    state = segments.newest_segment(tmp_path).state  # type: ignore[union-attr]
    assert state.next_seq == cut
    then = tagged(spark, stream.payloads, cut, None, stream.sessions, state=state)
    pgspark.write_segments(then, tmp_path, segment_bytes=200)
    whole = tagged(spark, stream.payloads, sessions=stream.sessions)
    assert rows_in(tmp_path) == in_order(whole.toArrow().to_pylist())
    assert list_segments(tmp_path)[-1].state.values == pgspark.state_after(whole).values


@pytest.mark.slow
def test_what_was_stored_meanwhile(spark: Any, tmp_path: Path) -> None:
    """Tagged payloads that were read from files say nothing of the state before them."""
    payloads = everything().payloads[: min(everything().sessions)]
    first = tagged(spark, payloads, 0, 30)
    first.write.parquet(str(tmp_path / "first"))
    text = pgspark.state_after(first).to_json()
    tagged(spark, payloads, 30, state=text).write.parquet(str(tmp_path / "then"))
    stored, then = (spark.read.parquet(str(tmp_path / name)) for name in ("first", "then"))
    with pytest.raises(PySparkException, match=r"first row is message 30, but .* continues with message 0"):
        pgspark.write_segments(then, tmp_path / "alone")
    pgspark.write_segments(then, tmp_path / "alone", state=text)
    pgspark.write_segments(stored, tmp_path / "both")
    with pytest.raises(PySparkException, match=r"first row is message 0, but .* continues with message 30"):
        pgspark.write_segments(stored, tmp_path / "both")
    pgspark.write_segments(then, tmp_path / "both")
    pgspark.write_segments(stored.union(then), tmp_path / "at_once")
    assert rows_in(tmp_path / "both") == rows_in(tmp_path / "at_once")
    assert rows_in(tmp_path / "alone") == rows_in(tmp_path / "both")[-len(rows_in(tmp_path / "alone")) :]


@pytest.mark.slow
def test_a_message_without_a_row_is_counted(spark: Any, tmp_path: Path) -> None:
    """A logical message that comes again has no row; the next stream begins after it all the same."""
    message = encode.encode_message(41, "p", b"once", transactional=False)
    wal = tagged(spark, [message, message, message])
    assert wal.count() == 1
    pgspark.write_segments(wal, tmp_path)
    (segment,) = list_segments(tmp_path)
    assert (segment.last_seq, segment.state.next_seq) == (0, 3)
    more = encode.encode_message(42, "p", b"once", transactional=False)
    places = [message] * 3 + [message, more]
    pgspark.write_segments(tagged(spark, places, 3, 5, state=segment.state), tmp_path)
    assert [each.last_seq for each in list_segments(tmp_path)] == [0, 4]


def test_no_rows_give_no_segment(spark: Any, tmp_path: Path) -> None:
    wal = pgspark.tag(frame(spark, [b"E"], 0, 1, set()).where("place < 0"), "place")
    assert pgspark.write_segments(wal, tmp_path / "new") == []
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_directories_that_are_refused(spark: Any, tmp_path: Path) -> None:
    payloads = everything().payloads[:30]
    wal = tagged(spark, payloads)
    pgspark.write_segments(wal, tmp_path / "segments")
    before = sorted((tmp_path / "segments").iterdir())
    with pytest.raises(ValueError, match=r"begin with message 0, but .* continues with message 30"):
        pgspark.write_segments(tagged(spark, payloads[:20]), tmp_path / "segments")
    assert sorted((tmp_path / "segments").iterdir()) == before
    wal.write.parquet(str(tmp_path / "others"))
    with pytest.raises(ValueError, match="does not have the name of a segment"):
        pgspark.write_segments(wal, tmp_path / "others")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and has no segments: it has note.txt"):
        pgspark.write_segments(wal, tmp_path / "notes")
    with pytest.raises(ValueError, match="not tagged"):
        pgspark.write_segments(wal.drop("seq"), tmp_path / "new")
    with pytest.raises(ValueError, match="segment_bytes must be at least 1"):
        pgspark.write_segments(wal, tmp_path / "new", segment_bytes=0)


def test_a_captures_directory_is_refused(spark: Any, tmp_path: Path) -> None:
    """Its slot would be confirmed by what nobody knows to be complete."""
    payloads = everything().payloads[:30]
    rows, state = pgo.tag(payloads[:20])
    segments.write_segment(tmp_path, rows, state, source=segments.Source("7", "shop", "slot"))
    with pytest.raises(ValueError, match="segments of one source only"):
        pgspark.write_segments(tagged(spark, payloads, 20, state=state), tmp_path)


@pytest.mark.slow
def test_rows_that_are_missing_or_changed(spark: Any, tmp_path: Path) -> None:
    payloads = everything().payloads[: min(everything().sessions)]
    tagged(spark, payloads).write.parquet(str(tmp_path / "tagged"))
    wal = spark.read.parquet(str(tmp_path / "tagged"))
    for k, some in enumerate(
        (
            wal.where("kind <> ascii('R')"),
            wal.withColumn("txn", wal["txn"] + 1),
            wal.union(wal.where("seq = 7")).withColumn("subxid", functions.col("xid")),
        )
    ):
        with pytest.raises(PySparkException, match=r"not what tag|DecodeError"):
            pgspark.write_segments(some, tmp_path / f"segments{k}")


@pytest.mark.slow
def test_a_driver_killed_at_every_step(spark: Any, tmp_path: Path) -> None:
    """Readers see a beginning of the stream at any time, and the same call again writes the rest."""
    stream = everything()
    dump = dumped(tmp_path / "dump", stream.payloads)
    wal = pgspark.tag(dump, "place", spark=spark)
    expected = in_order(wal.toArrow().to_pylist())
    job: Any = {"source": str(dump), "call": "write_segments", "arguments": {"segment_bytes": 300}}
    step = partly = 0
    for step in itertools.count(1):
        directory = tmp_path / str(step)
        with running({**job, "target": str(directory), "kill": (*STEPS, step)}, spark) as driver:
            code = driver.ended()
        rows = rows_in(directory) if code else expected
        assert rows == expected[: len(rows)]
        partly += 0 < len(rows) < len(expected)
        pgspark.write_segments(wal, directory, segment_bytes=300)
        settled(spark)
        assert_as_one_task(directory, wal)
        if code == 0:
            break
        assert code == -9, driver.errors()
    assert step > 4
    assert partly > 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", and_exhaustive(["worker"], ["executor"]))
def test_tasks_that_are_disturbed(spark: Any, tmp_path: Path, kind: str) -> None:
    """After its first segment, each task loses its worker or its executor, and runs again."""
    stream = everything()
    dump, directory = dumped(tmp_path / "dump", stream.payloads), tmp_path / "segments"
    (tmp_path / "marks").mkdir()
    (tmp_path / "home").mkdir()
    job: Any = {"source": str(dump), "target": str(directory), "call": "write_segments"}
    job |= {"arguments": {"segment_bytes": 150}, "tasks": [kind, str(tmp_path / "marks")]}
    # In a Spark of its own, since this one does not try again.
    job |= {"conf": {"spark.master": "local[2,4]"}} if kind == "worker" else {"conf": CLUSTER}
    job |= {} if kind == "worker" else {"home": str(tmp_path / "home")}
    with running(job) as driver:
        driver.until("done")
    jobs = {each.name.partition("-")[0] for each in (tmp_path / "marks").iterdir()}
    assert len(jobs) == 2
    assert_as_one_task(directory, pgspark.tag(dump, "place", spark=spark), 150)


@pytest.mark.slow
def test_a_disk_that_is_full(spark: Any, tmp_path: Path) -> None:
    """Nothing is there then, and the call can be repeated."""
    writer = encode.Writer()
    payloads = [
        writer.message(100 + k, "p", random.Random(k).randbytes(100_000), transactional=False)[0]
        for k in range(100)
    ]
    dump = dumped(tmp_path / "dump", payloads)
    wal = pgspark.tag(dump, "place", spark=spark)
    with small_disk(tmp_path) as disk:
        with pytest.raises(PySparkException, match="No space left on device"):
            pgspark.write_segments(wal, disk / "segments", segment_bytes=1 << 20)
        # A task that Spark is still stopping may leave a hidden file.
        assert not [each for each in os.listdir(disk / "segments") if not each.startswith(".")]
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        settled(spark)
        pgspark.write_segments(wal, disk / "segments", segment_bytes=1 << 20)
        assert_as_one_task(disk / "segments", wal, 1 << 20)


@pytest.mark.slow
def test_directories_that_cannot_have_segments(spark: Any, tmp_path: Path) -> None:
    raw = spark.createDataFrame([(0, b"")], "place long, payload binary").where("place > 0")
    tagged = pgspark.tag(raw, "place")
    (tmp_path / "file").write_bytes(b"x")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match=r"is a file, or lies below one: give a directory"):
            pgspark.write_segments(tagged, place)
    (tmp_path / "lake" / "public.orders").mkdir(parents=True)
    (tmp_path / "lake" / "public.orders" / "part-1.parquet").write_bytes(b"x")
    with pytest.raises(
        ValueError, match=r"is not empty and has no segments: it has public\.orders/part-1\.parquet"
    ):
        pgspark.write_segments(tagged, tmp_path / "lake")
    wrong: Any = "64MB"
    with pytest.raises(TypeError, match=r"segment_bytes must be a whole number, not a str"):
        pgspark.write_segments(tagged, tmp_path / "new", segment_bytes=wrong)
    assert not (tmp_path / "new").exists()


def _with_heartbeats(parts: int) -> list[list[bytes]]:
    """Parts of a stream, each of a session of its own: a new session repeats a message, which then has no row."""
    writer, table = (
        encode.Writer(4),
        encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23, key=True),)),
    )
    beat = writer.message(150, "p", b"beat", transactional=False)
    found = []
    for n in range(1, parts + 1):
        part = writer.begin(n, 100 * n, 0) + writer.change(table, "insert", new=[str(n)])
        found.append([*part, *writer.commit(100 * n, 100 * n + 8, 0), *beat])
    found.insert(2, list(beat))  # nothing else comes in this one
    return found


def _parts(spark: Any, parts: list[list[bytes]]) -> Any:
    """(number, tagged payloads) of each part, from its state on."""
    state, begin = None, 0
    for number, part in enumerate(parts):
        rows = [(begin + k, payload) for k, payload in enumerate(part)]
        wal = pgspark.tag(spark.createDataFrame(rows, "place bigint, payload binary"), "place", state=state)
        yield number, wal
        state, begin = pgspark.state_after(wal), begin + len(part)


@pytest.mark.slow
def test_messages_that_have_no_rows(spark: Any, tmp_path: Path) -> None:
    directory, lake = tmp_path / "segments", tmp_path / "lake"
    for number, wal in _parts(spark, _with_heartbeats(3)):
        new = pgspark.write_segments(wal, directory)
        assert len(new) == (number != 2)
        assert pgspark.write_segments(wal, directory) == []  # a repetition
    assert [(each.first_seq, each.last_seq) for each in list_segments(directory)] == [(0, 4), (5, 7), (8, 12)]
    # Nothing is missing between them, and other readers agree.
    assert [row.rows for row in pgspark.write_tables(directory, lake)] == [3]
    source = spark.read.format("pgoutput").option("table", "public.orders").load(str(directory))
    assert sorted(row["id"] for row in source.collect()) == [1, 2, 3]
    assert segments.compact(directory, keep=1, grace=0).joined
    assert [row.rows for row in pgspark.write_tables(directory, tmp_path / "again")] == [3]


def test_a_repetition_that_was_interrupted(spark: Any, tmp_path: Path) -> None:
    """The first try has written some of the segments."""
    stream = everything()
    wal = tagged(spark, stream.payloads, sessions=stream.sessions)
    directory = tmp_path / "segments"
    first, *others = pgspark.write_segments(wal, directory, segment_bytes=300)
    expected = rows_in(directory)
    for path in others[2:]:
        Path(path).unlink()
    assert pgspark.write_segments(wal, directory, segment_bytes=300)
    assert rows_in(directory) == expected
    assert segments.list_segments(directory)[0].path == first


def test_another_stream_is_no_repetition(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "segments"
    first, second, *_ = _with_heartbeats(2)
    pgspark.write_segments(next(_parts(spark, [first]))[1], directory)
    before = rows_in(directory)
    other = [*first[:4], encode.encode_message(99, "p", b"other", transactional=False), *second]
    _, wal = next(_parts(spark, [other]))
    with pytest.raises(PySparkException, match="has another message 4 than these rows"):
        pgspark.write_segments(wal, directory)
    assert rows_in(directory) == before


@pytest.mark.slow
def test_a_damaged_note(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "segments"
    wals = [wal for _, wal in _parts(spark, _with_heartbeats(3))]
    for wal in wals[:3]:
        pgspark.write_segments(wal, directory)
    note = directory / "_next.json"
    text = note.read_text()
    last = list_segments(directory)[-1].last_seq
    for damaged in (
        "{",
        "null",
        "[]",
        f'{{"last_seq": {last}}}',
        f'{{"last_seq": {last}, "next_seq": 1e400}}',
    ):
        note.write_text(damaged)
        with pytest.raises(ValueError, match=r"_next\.json is damaged: remove it"):
            pgspark.write_segments(wals[3], directory)
    note.unlink()
    with pytest.raises(
        ValueError, match=r"the payloads begin with message 10, but .* continues with message 9"
    ):
        pgspark.write_segments(wals[3], directory)
    note.write_text(text)
    assert pgspark.write_segments(wals[3], directory)


def _parts_of_sessions(spark: Any, parts: list[tuple[list[bytes], bool]], directory: Path) -> Any:
    """Writes parts of a stream, of which some begin a session. Returns the state behind them."""
    state, begin = None, 0
    for payloads, begins in parts:
        rows = [(begin + k, payload, k == 0 and begins) for k, payload in enumerate(payloads)]
        df = spark.createDataFrame(rows, "place bigint, payload binary, starts boolean")
        wal = pgspark.tag(df, "place", session_starts="starts", state=state)
        pgspark.write_segments(wal, directory)
        pgspark.write_segments(wal, directory)
        state, begin = pgspark.state_after(wal), begin + len(payloads)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [True, False])
def test_a_session_begins_where_no_message_has_a_row(spark: Any, tmp_path: Path, streamed: bool) -> None:
    """A connection broke within a transaction, and the new session begins with a message that is there already."""
    table = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23, key=True),))

    def begun(writer: encode.Writer) -> list[bytes]:
        if not streamed:
            return writer.begin(7, 100, 0) + writer.change(table, "insert", new=["1"])
        opening = writer.stream_start(7) + writer.change(table, "insert", new=["1"], xid=7)
        return opening + writer.stream_stop()

    kind = "on" if streamed else "off"
    first, second = encode.Writer(4, streaming=kind), encode.Writer(4, streaming=kind)
    beat = first.message(50, "p", b"beat", transactional=False)
    broken = [*beat, *begun(first)]
    whole = begun(second)
    whole += second.stream_commit(7, 100, 108, 0) if streamed else second.commit(100, 108, 0)
    directory = tmp_path / "segments"
    state = _parts_of_sessions(spark, [(broken, True), ([*beat], True), ([*whole], False)], directory)
    newest = segments.newest_segment(directory)
    assert newest is not None
    assert newest.open_txns == []
    assert newest.state.next_seq == state.next_seq
    marks = [row["seq"] for row in rows_in(directory) if row["kind"] == 0]
    assert marks[-1] > 0
    options = {"table": "public.orders", "transactions": "committed"}
    found = spark.read.format("pgoutput").options(**options).load(str(directory)).collect()
    assert [row["id"] for row in found] == [1]


@pytest.mark.slow
def test_missing_rows_stay_a_gap(spark: Any, tmp_path: Path) -> None:
    """A state that is given does not say that the rows begin there."""
    directory = tmp_path / "segments"
    first, second, _, third = _with_heartbeats(3)
    wals = list(_parts(spark, [first[:4], second[:3], third[:3]]))
    pgspark.write_segments(wals[0][1], directory)
    state = pgspark.state_after(wals[0][1])
    pgspark.write_segments(wals[2][1].where("seq >= 0"), directory, state=state)
    with pytest.raises(ValueError, match=r"no segment has messages 4 to 6|messages 4 to 6"):
        pgspark.write_tables(directory, tmp_path / "lake")


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


def test_another_process_writes_meanwhile(spark: Any, tmp_path: Path) -> None:
    """Its segment stays, and the call says so."""
    payloads, directory = everything().payloads, tmp_path / "segments"
    wal = pgspark.tag(dumped(tmp_path / "dump", payloads), "place", spark=spark)
    rows, state = pgo.tag(payloads[:5])
    written: list[Any] = []

    def other() -> None:
        wait_for(lambda: list(directory.glob(".*.unpublished.*")), 60)
        written.append(segments.write_segment(directory, rows, state, source=SOURCE))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(other)
        with pytest.raises(FileExistsError, match="another process wrote segments"):
            pgspark.write_segments(wal, directory, segment_bytes=1)
        writing.result()
    assert [segment.path for segment in list_segments(directory)] == written
    assert not list(directory.glob(".*.unpublished.*"))


def test_two_calls_at_the_same_time(spark: Any, tmp_path: Path) -> None:
    """At most one of them goes on at a time, the segments are a beginning of the stream, and the next call ends it."""
    wal = pgspark.tag(dumped(tmp_path / "dump", everything().payloads), "place", spark=spark)
    directory, expected = tmp_path / "segments", in_order(wal.toArrow().to_pylist())

    def write(_: int) -> Exception | None:
        try:
            pgspark.write_segments(wal, directory, segment_bytes=100)
        except Exception as problem:
            return problem
        return None

    with ThreadPoolExecutor() as pool:
        problems = [each for each in pool.map(write, range(2)) if each is not None]
    for each in problems:
        assert "another process wrote segments" in str(each), each
    rows = rows_in(directory)
    assert rows == expected[: len(rows)]
    pgspark.write_segments(wal, directory, segment_bytes=100)
    assert_as_one_task(directory, wal, 100)
