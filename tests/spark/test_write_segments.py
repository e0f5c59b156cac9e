"""Tagged payloads become segments that everything else reads, on a real Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import pgoutput_fast as pgo
from pgoutput_fast import encode, segments
from pgoutput_fast import spark as pgspark
from pgoutput_fast.segments import list_segments, segment_catalog, segment_outcomes
from support.forms import and_slow
from support.interleaved import everything
from support.spark_segments import few_tasks, frame, parts_of, rows_in, tagged, with_heartbeats
from support.streams import RandomChoices, make_stream
from support.tagged_rows import in_order

__all__ = ["few_tasks"]


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


@pytest.mark.slow
def test_messages_that_have_no_rows(spark: Any, tmp_path: Path) -> None:
    directory, lake = tmp_path / "segments", tmp_path / "lake"
    for number, wal in parts_of(spark, with_heartbeats(3)):
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
    first, second, *_ = with_heartbeats(2)
    pgspark.write_segments(next(parts_of(spark, [first]))[1], directory)
    before = rows_in(directory)
    other = [*first[:4], encode.encode_message(99, "p", b"other", transactional=False), *second]
    _, wal = next(parts_of(spark, [other]))
    with pytest.raises(PySparkException, match="has another message 4 than these rows"):
        pgspark.write_segments(wal, directory)
    assert rows_in(directory) == before


@pytest.mark.slow
def test_a_damaged_note(spark: Any, tmp_path: Path) -> None:
    directory = tmp_path / "segments"
    wals = [wal for _, wal in parts_of(spark, with_heartbeats(3))]
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
    first, second, _, third = with_heartbeats(3)
    wals = list(parts_of(spark, [first[:4], second[:3], third[:3]]))
    pgspark.write_segments(wals[0][1], directory)
    state = pgspark.state_after(wals[0][1])
    pgspark.write_segments(wals[2][1].where("seq >= 0"), directory, state=state)
    with pytest.raises(ValueError, match=r"no segment has messages 4 to 6|messages 4 to 6"):
        pgspark.write_tables(directory, tmp_path / "lake")
