"""A stream that is tagged in several calls: each continues with the state of the one before, on a real Spark."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from support.forms import and_exhaustive
from support.interleaved import everything
from support.streams import RandomChoices, make_stream
from support.tagged_rows import in_order

ORDERS = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23, key=True),))


def frame(spark: Any, payloads: list[bytes], begin: int, end: int, sessions: set[int] | None = None) -> Any:
    """Part of a stream, in another order than that in which it came."""
    places = list(range(begin, end))
    random.Random(begin).shuffle(places)
    table = {
        "place": pa.array(places, pa.int64()),
        "payload": pa.array([payloads[k] for k in places], pa.binary()),
        "lsn": pa.array([1000 + k if k % 5 else None for k in places], pa.int64()),
        "starts": pa.array([k in (sessions or ()) for k in places], pa.bool_()),
    }
    return spark.createDataFrame(pa.table(table)).repartition(2)


def sorted_rows(*frames: Any) -> list[dict[str, Any]]:
    return in_order([row for df in frames for row in df.toArrow().to_pylist()])


def check_cuts(
    spark: Any, payloads: list[bytes], cuts: list[int], sessions: set[int] | None = None, **more: Any
) -> None:
    """The parts, tagged one after the other, give the rows and the state of the whole."""
    more |= {"lsn": "lsn", "session_starts": "starts"}
    whole = pgspark.tag(frame(spark, payloads, 0, len(payloads), sessions), "place", **more)
    parts: list[Any] = []
    for begin, end in zip([0, *cuts], [*cuts, len(payloads)], strict=True):
        before = pgspark.state_after(parts[-1]).to_json() if parts else None
        parts.append(pgspark.tag(frame(spark, payloads, begin, end, sessions), "place", state=before, **more))
        assert pgspark.state_after(parts[-1]).next_seq == end
    assert sorted_rows(*parts) == sorted_rows(whole)
    assert pgspark.state_after(parts[-1]).values == pgspark.state_after(whole).values


@pytest.mark.slow
def test_a_cut_where_everything_is_open(spark: Any) -> None:
    """Two streams are open, one of them in a block; one transaction is prepared, Relations came before."""
    payloads = everything().payloads[: min(everything().sessions)]
    states = [pgo.tag(payloads[:k])[1].values or {} for k in range(len(payloads))]
    wanted = [
        k
        for k, values in enumerate(states)
        if values.get("streamed") and values.get("prepared") and values.get("context") == "streaming"
    ]
    plain = [k for k, values in enumerate(states) if values.get("context") == "plain" and values["streamed"]]
    assert wanted
    assert plain
    check_cuts(spark, payloads, [wanted[0]])
    check_cuts(spark, payloads, [plain[0]])


@pytest.mark.slow
@pytest.mark.parametrize("partitions", and_exhaustive([2], [None]))
def test_a_session_that_starts_at_the_cut(spark: Any, partitions: int | None) -> None:
    stream = everything()
    (session,) = stream.sessions
    for cut in (session, session - 1, session + 1):
        check_cuts(spark, stream.payloads, [cut], stream.sessions, partitions=partitions)


@pytest.mark.slow
@pytest.mark.parametrize("seed", and_exhaustive(range(2), range(2, 6)))
def test_random_streams_with_random_cuts(spark: Any, seed: int) -> None:
    stream = make_stream(RandomChoices(seed), 25)
    chance = random.Random(seed)
    cuts = sorted(chance.randrange(len(stream.payloads) + 1) for _ in range(2))
    check_cuts(spark, stream.payloads, cuts, stream.sessions, partitions=chance.choice([None, 2]))


def test_the_state_is_that_of_one_piece(spark: Any) -> None:
    """So any of the ways to tag continues any other."""
    payloads = everything().payloads[: min(everything().sessions)]
    cut = 30
    lsns = [1000 + k if k % 5 else None for k in range(len(payloads))]
    _, state = pgo.tag(payloads[:cut], lsn=lsns[:cut])
    first = pgspark.tag(frame(spark, payloads, 0, cut), "place", lsn="lsn")
    assert pgspark.state_after(first).values == state.values
    then = pgspark.tag(frame(spark, payloads, cut, len(payloads)), "place", lsn="lsn", state=state)
    expected, behind = pgo.tag(payloads[cut:], pgspark.state_after(first), lsn=lsns[cut:])
    assert sorted_rows(then) == in_order(expected.to_pylist())
    assert pgspark.state_after(then).values == behind.values


@pytest.mark.slow
def test_relations_and_types_that_only_the_first_part_has(spark: Any, tmp_path: Path) -> None:
    """The state, stored in a file and in the properties of a table, has them; the rows decode."""
    writer = encode.Writer(types={20001: ("public", "mood")})
    table = encode.RelationSpec(16402, "public", "people", (encode.ColumnSpec("mood", 20001),))
    payloads = writer.begin(1, 100, 0) + writer.change(table, "insert", new=["glad"])
    first = pgspark.tag(frame(spark, payloads, 0, len(payloads)), "place")
    text = pgspark.state_after(first).to_json()
    (tmp_path / "state.json").write_text(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"create table tagged_until (a int) using parquet tblproperties ('state' = '{quoted}')")
    try:
        assert spark.sql("show tblproperties tagged_until('state')").first()["value"] == text
    finally:
        spark.sql("drop table tagged_until")
    cut = len(payloads)
    payloads += writer.change(table, "insert", new=["sad"]) + writer.commit(100, 108, 0)
    assert not [payload for payload in payloads[cut:] if payload[:1] in b"RY"]
    state = (tmp_path / "state.json").read_text()
    then = pgspark.tag(frame(spark, payloads, cut, len(payloads)), "place", state=state)
    (row,) = pgspark.changes(then, "public.people").collect()
    assert (row["_seq"], row["_txn"], row["mood"]) == (cut, 0, "sad")
    (relation,) = pgspark.read_catalog(then).relations
    assert relation.columns[0].type_name == "mood"
    # A Relation in the second part, whose Type came in the first one.
    again = [encode.encode_relation(table), *payloads[cut:]]
    renewed = pgspark.tag(frame(spark, again, 0, len(again)), "place", state=state)
    assert pgspark.read_catalog(renewed).relations[0].columns[0].type_name == "mood"


def test_no_rows_change_nothing(spark: Any) -> None:
    _, state = pgo.tag(everything().payloads[:30])
    none = pgspark.tag(frame(spark, everything().payloads, 0, 5).where("place > 9"), "place", state=state)
    assert none.count() == 0
    assert pgspark.state_after(none).values == state.values
    assert pgspark.state_after(pgspark.tag(none.selectExpr("seq", "payload"), "seq")).next_seq == 0


def test_an_error_has_the_ordinal_of_the_stream(spark: Any) -> None:
    _, state = pgo.tag([encode.encode_begin(100, 0, 7)])
    payloads = [encode.encode_begin(200, 0, 8)]
    with pytest.raises(pgo.DecodeError, match=r"^message 1\b"):
        pgspark.tag(frame(spark, payloads, 0, 1), "place", state=state)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ("{}", ValueError, "not a stream state of format 1"),
        ("", ValueError, "not the JSON text of a StreamState"),
        ("state.json", ValueError, "pass the content of a file, not its name"),
        (json.dumps({"format": 1, "state": None, "held": None}), ValueError, "'catalog' is missing"),
        (7, TypeError, "state must be a StreamState, not int"),
    ],
)
def test_what_is_no_state(spark: Any, state: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        pgspark.tag(frame(spark, [b"E"], 0, 1), "place", state=state)


def test_the_state_of_the_committed_view_is_refused(spark: Any) -> None:
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    writer = encode.Writer()
    decoder.decode(writer.begin(1, 100, 0) + writer.change(ORDERS, "insert", new=["1"]))
    for state in (decoder.state, decoder.state.to_json()):
        with pytest.raises(ValueError, match="changes that wait for their commit"):
            pgspark.tag(frame(spark, [b"E"], 0, 1), "place", state=state)


def test_only_what_tag_returned_has_a_state(spark: Any) -> None:
    tagged = pgspark.tag(frame(spark, everything().payloads[:5], 0, 5), "place")
    with pytest.raises(ValueError, match=r"pass the DataFrame that pgspark.tag\(...\) returned itself"):
        pgspark.state_after(tagged.where("seq < 3"))
