"""Damaged payloads: `tag` in quarantine rejects exactly what one decoder in quarantine rejects, wherever ranges end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.decoding.rejected_rows import tag_in_quarantine
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of
from pgoutput_fast.protocol.kinds import MSG_ORIGIN, REJECTED, UNKNOWN_OUTCOME
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.segments import list_segments
from pgoutput_fast.spark.tagging.quarantine import Checked, checked_starts
from pgoutput_fast.spark.tasks.parts import Parts
from pgoutput_fast.spark.tasks.range_outcomes import RangeOutcomes, with_outcomes
from pgoutput_fast.spark.tasks.rows import ChangesBetween
from pgoutput_fast.spark.tasks.survey import Survey, Surveyor
from pgoutput_fast.spark.tasks.tag import (
    CHECKED_SCHEMA,
    LSN,
    PAYLOAD,
    RANGE,
    SESSION,
    Summarize,
    TagRanges,
)
from pgoutput_fast.transactions.outcomes import TransactionOutcomes
from support.current_streams import batch_of
from support.forms import and_slow
from support.streams import RandomChoices, Stream, damage, listed_outcomes, make_stream, table_of
from support.written_tables import DIRECTORIES, NAMES, PAYLOADS, read

QUARANTINE = pgo.Options(on_error="quarantine")
# ---- without Spark: many streams, cut in many ways -------------------------------------------------------------------


@dataclass
class LocalRows:
    """Ranges of rows that tasks get in this process."""

    parts: Sequence[Sequence[pa.RecordBatch]]
    jobs: int = 0

    def mapped(self, task: Callable[..., Any], schema: Any) -> Any:
        self.jobs += 1
        return LocalFrame([batch for part in self.parts for batch in task(iter(part))])

    def in_one_task(self) -> LocalRows:
        return replace(self, parts=[list(chain.from_iterable(self.parts))])

    def shared(self, parts: Iterable[bytes]) -> Parts:
        return Parts.of(parts)


@dataclass
class LocalFrame:
    batches: list[pa.RecordBatch]

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.Table.from_batches(self.batches, CHECKED_SCHEMA)


@dataclass(frozen=True)
class LocalRange:
    count: int
    first: str
    last: str
    damaged: bool
    summary: bytes


def one_decoder(stream: Stream) -> tuple[pa.Table, StreamState]:
    """The rows and the last state of one decoder."""
    native, found = native_decoder(QUARANTINE), [TAGGED_SCHEMA.empty_table()]
    for begin, end in pairwise(sorted({0, *stream.sessions, len(stream.payloads)})):
        if begin in stream.sessions:
            native.start_session()
        payloads = pa.array(stream.payloads[begin:end], pa.binary())
        lsns = pa.array(stream.lsns[begin:end], pa.int64())
        found.append(pa.Table.from_batches([tag_in_quarantine(native, payloads, lsns)]))
    return pa.concat_tables(found), state_of(native)


def in_ranges(stream: Stream, chance: random.Random) -> tuple[pa.Table, Checked, int]:
    """The rows of ranges that end anywhere, what the jobs say of these ranges, and the number of jobs."""
    count = len(stream.payloads)
    # A null counts as an empty payload.
    payloads = [None if not each and chance.random() < 0.5 else each for each in stream.payloads]

    def batch(number: int, begin: int, end: int, length_of: Callable[[bytes], int]) -> pa.RecordBatch:
        some = [each if each is None else each[: length_of(each)] for each in payloads[begin:end]]
        columns = {
            RANGE: pa.array([number] * len(some), pa.int64()),
            PAYLOAD: pa.array(some, pa.binary()),
            "order0": pa.array(range(begin, end), pa.int64()),
            LSN: pa.array(stream.lsns[begin:end], pa.int64()),
            SESSION: pa.array([k in stream.sessions for k in range(begin, end)]),
        }
        return pa.RecordBatch.from_pydict(columns)

    def batches(begin: int, end: int, length_of: Callable[[bytes], int]) -> list[pa.RecordBatch]:
        edges = sorted({begin, end, chance.randrange(begin, end)})
        return [batch(begin, *each, length_of) for each in pairwise(edges)]

    cuts = sorted({0, count, *(chance.randrange(count) for _ in range(chance.randrange(9)))})
    ranges, first_pass = list(pairwise(cuts)), Summarize(False, ("payload", "order0"), True, True)
    found = []
    for begin, end in ranges:
        (row,) = first_pass(iter(batches(begin, end, _first_pass)))
        values = row.to_pylist()[0]
        assert values["problem"] is None
        found.append(LocalRange(*(values[name] for name in ("count", "first", "last", "damaged", "summary"))))
    second, whole = (
        [[each.drop_columns([RANGE]) for each in batches(*cut, length_of)] for cut in ranges]
        for length_of in (_header, len)
    )
    rows = LocalRows(second)
    checked = checked_starts(rows, found, ("order0",), StreamState(), commits=True)
    task = TagRanges(checked.starts, ("order0",), TAGGED_SCHEMA, True)
    tagged = [each for part in whole for each in task(iter(part))]
    return pa.Table.from_batches(tagged, TAGGED_SCHEMA), checked, rows.jobs


def _survey(rows: pa.Table) -> Survey:
    surveyor = Surveyor(outcomes=True)
    for batch in rows.to_batches():
        surveyor.add(batch)
    return surveyor.survey()


def _known(survey: Survey) -> tuple[Any, ...]:
    bodies = {(row["kind"], bytes(row["body"])) for row in survey.descriptions}
    return survey.relations, bodies, *listed_outcomes(survey.outcomes)


def _first_pass(payload: bytes) -> int:
    return 14 if payload[:1] == b"M" else _header(payload)


def _header(payload: bytes) -> int:
    return 13 if payload[:1] in (b"I", b"U", b"D") else len(payload)


def _comparable(rows: pa.Table) -> list[dict[str, Any]]:
    at = rows.schema.get_field_index("commit_timestamp")
    times = rows.column(at).cast(pa.int64())  # a damaged one is beyond Python's range
    found: list[dict[str, Any]] = rows.set_column(at, "commit_timestamp", times).to_pylist()
    for row in found:
        # An Origin is of the whole transaction. In the wrong place it has the subtransaction of the message before it,
        # which no state has.
        row["subxid"] = None if row["kind"] == MSG_ORIGIN else row["subxid"]
    return found


def _values(state: StreamState) -> dict[str, Any]:
    values = dict(pgo.tag([], state)[1].values or {})
    # Nothing depends on the relations that a prepared transaction missed.
    values["prepared"] = [
        {name: value for name, value in each.items() if name != "relations_missed"}
        for each in values["prepared"]
    ]
    return values


def _check(seed: int) -> tuple[bool, int]:
    chance = random.Random(seed)
    stream = damage(RandomChoices(seed), make_stream(RandomChoices(seed), 16), chance.randrange(1, 5))
    if not stream.payloads:
        return False, 0
    expected, last = one_decoder(stream)
    got, checked, jobs = in_ranges(stream, chance)
    state, is_rejected = checked.state, checked.rejected
    assert _known(checked.survey) == _known(_survey(expected))
    assert _comparable(got) == _comparable(expected)
    assert _values(state) == _values(last)
    _check_ranges(got, checked)
    assert [each.version for each in state.catalog.relations] == [
        each.version for each in last.catalog.relations
    ]
    kinds = set(expected["kind"].to_pylist())
    assert is_rejected == bool(kinds & {REJECTED, UNKNOWN_OUTCOME})
    return is_rejected, jobs


def _check_ranges(rows: pa.Table, checked: Checked) -> None:
    """The outcomes that the task of a range gets say the same of its rows as those of all transactions."""
    outcomes = checked.survey.outcomes
    of_ranges = RangeOutcomes.of(outcomes, checked.ranges, Parts.of)
    seqs = rows.column("seq").to_numpy()
    edges = [*of_ranges.first_seqs, checked.state.next_seq]
    parts = [rows.filter(pa.array((seqs >= first) & (seqs < end))) for first, end in pairwise(edges)]
    assert sum(part.num_rows for part in parts) == rows.num_rows
    for part, own in with_outcomes(parts, of_ranges):
        assert own is not None
        assert own.released(part).equals(outcomes.released(part))
        assert own.lost_rows(part).equals(outcomes.lost_rows(part))


@pytest.mark.parametrize("seeds", and_slow([range(40)], [range(40, 500), range(500, 1000)]))
def test_ranges_give_what_one_decoder_gives(seeds: range) -> None:
    """Flipped bits, messages cut, lengthened, removed, doubled, swapped or invented; sessions; any ranges."""
    found = [_check(seed) for seed in seeds]
    assert sum(is_rejected for is_rejected, _ in found) > len(seeds) // 2
    # Damage is local: hardly ever the ranges are tagged one after the other.
    assert sum(jobs for _, jobs in found) < 2.5 * len(seeds)


@pytest.mark.parametrize("seed", and_slow([0], range(1, 20)))
def test_damage_in_every_range(seed: int) -> None:
    """Each message of a stream in turn, with ranges that begin and end right there."""
    made = make_stream(RandomChoices(seed), 6)
    chance = random.Random(seed)
    for at, payload in enumerate(made.payloads):
        damages = [b"", b"?" + payload[1:], payload[: len(payload) // 2], payload + b"\0"]
        for bad in damages if seed else chance.sample(damages, 1):
            stream = Stream([*made.payloads[:at], bad, *made.payloads[at + 1 :]], made.lsns, made.sessions)
            expected, last = one_decoder(stream)
            got, checked, _ = in_ranges(stream, chance)
            assert _comparable(got) == _comparable(expected), (at, bad)
            assert _values(checked.state) == _values(last)
            assert _known(checked.survey) == _known(_survey(expected))


# ---- with Spark ------------------------------------------------------------------------------------------------------


def _damaged() -> list[bytes | None]:
    """One of each: a null, an empty payload, an unknown kind, a Commit, a Relation and a change that are cut."""
    payloads: list[bytes | None] = list(PAYLOADS)

    def places(kind: bytes) -> list[int]:
        return [k for k, payload in enumerate(PAYLOADS) if payload[:1] == kind]

    inserts, commits, relations = places(b"I"), places(b"C"), places(b"R")
    for at, damaged in (
        (inserts[len(inserts) // 4], None),
        (inserts[len(inserts) // 2], b""),
        (inserts[-4], b"?" + PAYLOADS[inserts[-4]][1:]),
        (inserts[-9], PAYLOADS[inserts[-9]][:7]),
        (commits[len(commits) // 3], PAYLOADS[commits[len(commits) // 3]][:7]),
        (relations[-2], PAYLOADS[relations[-2]][:-3]),
    ):
        payloads[at] = damaged
    return payloads


def _decoded(payloads: Sequence[bytes | None], transactions: Any) -> pgo.Decoded:
    decoder = pgo.Decoder(pgo.Options(on_error="quarantine", transactions=transactions))
    return decoder.decode([payload or b"" for payload in payloads])


def _source(spark: Any, payloads: Sequence[bytes | None], way: str, place: Path) -> Any:
    rows = pa.table({"place": pa.array(range(len(payloads))), "data": pa.array(payloads, pa.binary())})
    if way == "shuffled":
        order = random.Random(1).sample(range(len(rows)), len(rows))
        return spark.createDataFrame(rows.take(pa.array(order))).repartition(3)
    place.mkdir()
    for at in range(0, rows.num_rows, 100):
        pq.write_table(rows.slice(at, 100), place / f"{at:05}.parquet")
    return str(place) if way == "files" else spark.read.parquet(str(place))


def _sorted(rows: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.sort_by("seq").to_pylist()
    return sorted(found, key=lambda row: (row["seq"], row["byte_offset"] or 0, str(row)))


def _assert_decoded(
    wal: Any, payloads: Sequence[bytes | None], transactions: Any, names: Sequence[str] = NAMES
) -> None:
    expected = _decoded(payloads, transactions)
    got = pgspark.rejects(wal, transactions=transactions).toArrow()
    assert _sorted(got) == _sorted(pa.Table.from_batches([expected.rejects])) != []
    for name in names:
        rows = pgspark.changes(wal, name, options=QUARANTINE, transactions=transactions).toArrow()
        seqs = expected.table(name)["_seq"].to_pylist()
        assert sorted(rows["_seq"].to_pylist()) == sorted(seqs) != []


def _tagged(spark: Any, payloads: Sequence[bytes | None], way: str, place: Path) -> Any:
    source = _source(spark, payloads, way, place)
    return pgspark.tag(source, "place", payload="data", on_error="quarantine", spark=spark)


def test_changes_and_rejects_are_those_of_one_decoder(spark: Any, tmp_path: Path) -> None:
    payloads = _damaged()
    wal = _tagged(spark, payloads, "files", tmp_path / "dump")
    _assert_decoded(wal, payloads, "committed", NAMES[:1])
    # Without quarantine, no change is left out in silence.
    with pytest.raises(PySparkException, match=r"DecodeError: message \d+"):
        pgspark.changes(wal, NAMES[0]).toArrow()


@pytest.mark.slow
@pytest.mark.parametrize("transactions", ["committed", "as_sent"])
@pytest.mark.parametrize("way", ["files", "in order", "shuffled"])
def test_changes_and_rejects_of_stored_rows(spark: Any, tmp_path: Path, way: str, transactions: Any) -> None:
    payloads = _damaged()
    wal = _tagged(spark, payloads, way, tmp_path / "dump")
    _assert_decoded(wal, payloads, transactions)
    wal.write.parquet(str(tmp_path / "stored"))
    stored = spark.read.parquet(str(tmp_path / "stored"))
    _assert_decoded(stored, payloads, transactions)
    with pytest.raises(PySparkException, match=r"DecodeError: message \d+"):
        pgspark.changes(stored, NAMES[0], transactions=transactions).toArrow()


ORDERS = encode.RelationSpec(16401, "public", "orders", (encode.ColumnSpec("id", 23, key=True),))


def _orders(count: int) -> list[bytes]:
    writer, wal = encode.Writer(), []
    for k in range(count):
        wal += writer.begin(k + 1, 100 * k + 100, 0)
        wal += writer.change(ORDERS, "insert", new=[str(k)])
        wal += writer.commit(100 * k + 100, 100 * k + 108, 0)
    return wal


def _check_outcomes(seed: int) -> bool:
    chance = random.Random(seed)
    stream = damage(RandomChoices(seed), make_stream(RandomChoices(seed), 16), chance.randrange(1, 5))
    if not stream.payloads or stream.sessions:
        return False
    rows, state = one_decoder(stream)
    decoded = pgo.decode_tagged(rows, state.catalog, QUARANTINE)
    named = decoded.outcomes.select(["txn", "outcome", "subxid"]).to_pylist()
    ended = [row["txn"] for row in named if row["subxid"] is None]
    assert len(ended) == len(set(ended))
    outcomes = TransactionOutcomes.of_batch(decoded.outcomes)
    committed = set(ChangesBetween(outcomes, 0, len(stream.payloads)).of(rows)["seq"].to_pylist())
    lost = outcomes.lost_rows(rows)["seq"].to_pylist()
    assert committed.isdisjoint(lost)
    options = replace(QUARANTINE, transactions="committed")
    expected = pgo.decode(stream.payloads, lsn=stream.lsns, options=options)
    again = pgo.decode_tagged(rows, state.catalog, options, outcomes=decoded.outcomes)
    ways = [
        sorted(s for e in each.changes for s in e.batch["_seq"].to_pylist()) for each in (expected, again)
    ]
    assert ways[0] == ways[1]
    return bool(lost)


@pytest.mark.parametrize("seeds", and_slow([range(270, 300)], [range(1000)]))
def test_a_commit_of_a_transaction_whose_outcome_is_unknown(seeds: range) -> None:
    """It releases no row: a part of the transaction may have been rolled back by a message that is damaged."""
    assert sum(map(_check_outcomes, seeds)) > 0


@pytest.mark.parametrize("transactions", and_slow(["committed"], ["as_sent"]))
def test_one_poisoned_payload(spark: Any, tmp_path: Path, transactions: Any) -> None:
    """In one of many files: all other rows are written, and the reject."""
    payloads: list[bytes | None] = list(_orders(400))
    poisoned = next(k for k, payload in enumerate(payloads) if k > 700 and (payload or b"")[:1] == b"I")
    payloads[poisoned] = b"\xff"
    dump = _source(spark, payloads, "files", tmp_path / "dump")

    def write(**more: Any) -> Any:
        given = {"order_by": "place", "payload": "data", "transactions": transactions, "spark": spark}
        return pgspark.write_raw(dump, tmp_path / "lake", **given, **more)

    with pytest.raises((pgo.DecodeError, PySparkException), match=f"message {poisoned}[ ,:]"):
        write()
    write(on_error="quarantine")
    expected = _decoded(payloads, transactions)
    ids = read("parquet", tmp_path / "lake", "public.orders")["id"].to_pylist()
    assert sorted(ids) == sorted(expected.table("public.orders")["id"].to_pylist())
    for _ in range(2):  # a repeated call adds nothing
        rejects = pq.read_table(tmp_path / "lake" / "_rejects" / "_other")
        named = tmp_path / "lake" / "_rejects" / "public.orders"
        found = [rejects, *([pq.read_table(named)] if named.exists() else [])]
        got = pa.concat_tables([each.select(expected.rejects.schema.names) for each in found])
        assert _sorted(got) == _sorted(pa.Table.from_batches([expected.rejects]))
        assert [row.rows for row in write(on_error="quarantine")] == [0]


@pytest.mark.slow
def test_tables_of_a_stream_with_all_kinds_of_damage(spark: Any, tmp_path: Path) -> None:
    payloads = _damaged()
    wal = _tagged(spark, payloads, "files", tmp_path / "dump")
    with pytest.raises(PySparkException, match="DecodeError: message "):
        pgspark.write_tables(wal, tmp_path / "raised")
    pgspark.write_tables(wal, tmp_path / "lake", options=QUARANTINE)
    expected = _decoded(payloads, "committed")
    for name, directory in zip(NAMES, DIRECTORIES, strict=True):
        rows = read("parquet", tmp_path / "lake", directory)
        assert sorted(rows["_seq"].to_pylist()) == sorted(expected.table(name)["_seq"].to_pylist()) != []
    places = sorted((tmp_path / "lake" / "_rejects").iterdir())
    names = expected.rejects.schema.names
    got = pa.concat_tables([pq.read_table(place).select(names) for place in places])
    assert _sorted(got) == _sorted(pa.Table.from_batches([expected.rejects]))


def _write_segments(
    spark: Any, payloads: Sequence[bytes | None], place: Path, cuts: Sequence[int] = ()
) -> Path:
    """Segments of a dump that arrives in several parts, each tagged from the state after the one before."""
    state = None
    for begin, end in pairwise([0, *cuts, len(payloads)]):
        rows = pa.table({"place": range(begin, end), "data": pa.array(payloads[begin:end], pa.binary())})
        path = str(place / f"{begin}.parquet")
        pq.write_table(rows, path)
        given = {"payload": "data", "state": state, "on_error": "quarantine", "spark": spark}
        wal = pgspark.tag(path, "place", **given)
        pgspark.write_segments(wal, place / "segments", segment_bytes=20_000)
        state = pgspark.state_after(wal).to_json()
    assert len(list_segments(place / "segments")) > 1
    return place / "segments"


def test_segments_have_the_rejected_messages(spark: Any, tmp_path: Path) -> None:
    payloads = _damaged()
    directory = _write_segments(spark, payloads, tmp_path)
    _assert_decoded(spark.read.parquet(f"{directory}/*.parquet"), payloads, "committed", ())
    last = list_segments(directory)[-1].last_seq
    with pytest.raises(ValueError, match="a current table cannot leave changes out"):
        pgspark.current_sink(tmp_path / "current")(batch_of(spark, directory, 0, last), 0)
    with pytest.raises(ValueError, match="has messages that were rejected when they were tagged"):
        pgspark.write_tables(directory, tmp_path / "lake", spark=spark)


@pytest.mark.slow
def test_segments_that_are_continued(spark: Any, tmp_path: Path) -> None:
    payloads = _damaged()
    directory = _write_segments(spark, payloads, tmp_path, [300, 400, 650])
    _assert_decoded(spark.read.parquet(f"{directory}/*.parquet"), payloads, "committed")
    expected = _decoded(payloads, "committed")

    def load(on_error: str) -> pa.Table:
        options = {"table": NAMES[0], "transactions": "committed", "on_error": on_error}
        return spark.read.format("pgoutput").options(**options).load(str(directory)).toArrow()

    got = sorted(load("quarantine")["_seq"].to_pylist())
    assert got == sorted(expected.table(NAMES[0])["_seq"].to_pylist())
    with pytest.raises(PySparkException, match="has messages that were rejected when they were tagged"):
        load("raise")
    pgspark.write_tables(directory, tmp_path / "lake", options=QUARANTINE, spark=spark)
    assert sorted(read("parquet", tmp_path / "lake", DIRECTORIES[0])["_seq"].to_pylist()) == got


@pytest.mark.slow
def test_batches_of_a_query(spark: Any, tmp_path: Path) -> None:
    """Each continues with the state of the one before, also right after a damaged message."""
    payloads, found = _damaged(), []
    bad = [k for k, (now, was) in enumerate(zip(payloads, PAYLOADS, strict=True)) if now != was]

    def take(wal: Any, batch: int) -> None:
        found.extend(pgspark.rejects(wal, transactions="as_sent").toArrow().to_batches())

    tag = pgspark.tag_batches(tmp_path / "states", "place", take, payload="data", on_error="quarantine")
    for batch, (begin, end) in enumerate(pairwise([0, bad[0] + 1, bad[3] + 1, len(payloads)])):
        rows = pa.table({"place": range(begin, end), "data": pa.array(payloads[begin:end], pa.binary())})
        tag(spark.createDataFrame(rows), batch)
    expected = _decoded(payloads, "as_sent").rejects
    assert _sorted(pa.Table.from_batches(found)) == _sorted(pa.Table.from_batches([expected]))


@pytest.mark.parametrize("described", and_slow([False], [True]))
def test_all_changes_are_rejected(spark: Any, tmp_path: Path, described: bool) -> None:
    """No table has a row, or is known at all: the rejects are written nevertheless."""
    payloads: list[bytes | None] = list(_orders(1))
    if described:
        payloads[2:2] = [b""]
    else:
        (at,) = (k for k, payload in enumerate(payloads) if (payload or b"")[:1] == b"R")
        payloads[at] = (payloads[at] or b"")[:-1]
    dump = _source(spark, payloads, "files", tmp_path / "dump")
    written = pgspark.write_raw(
        dump, tmp_path / "lake", order_by="place", payload="data", on_error="quarantine", spark=spark
    )
    assert sum(row.rows for row in written) == 0
    expected = _decoded(payloads, "committed").rejects
    got = pq.read_table(tmp_path / "lake" / "_rejects" / "_other").select(expected.schema.names)
    assert _sorted(got) == _sorted(pa.Table.from_batches([expected]))
    assert len(got) == 2


@pytest.mark.slow
def test_a_type_is_damaged(spark: Any, tmp_path: Path) -> None:
    """The Relation after it describes no version: the catalog is that of one decoder."""
    stream = next(
        made
        for made in (make_stream(RandomChoices(seed), 20) for seed in range(100))
        if not made.sessions and sum(payload[:1] == b"Y" for payload in made.payloads) > 2
    )
    for at in [k for k, payload in enumerate(stream.payloads) if payload[:1] == b"Y"][:2]:
        payloads = [*stream.payloads[:at], stream.payloads[at][:-2], *stream.payloads[at + 1 :]]
        wal = _tagged(spark, payloads, "files", tmp_path / f"dump{at}")
        _, last = one_decoder(Stream(payloads, [0] * len(payloads), set()))
        expected = {each.version for each in last.catalog.relations}
        for each in (wal, wal.select("*")):
            assert {each.version for each in pgspark.read_catalog(each).relations} == expected


def test_wrong_argument(spark: Any) -> None:
    df = spark.createDataFrame([(1, b"B")], "place long, payload binary")
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'quarantine', not 'skip'"):
        pgspark.tag(df, "place", on_error="skip")  # type: ignore[arg-type]


def test_one_batch_of_tagged_rows() -> None:
    """Its rejected messages are rejects, or the error; its unknown outcomes are those of the transactions."""
    wal = [*_orders(2), encode.encode_stream_start(9, True), encode.encode_relation(ORDERS, xid=9)]
    wal += [encode.encode_insert(16401, ["7"], xid=9), encode.encode_stream_stop(), b"A\0"]
    wal += [encode.encode_stream_commit(9, 900, 908, 0)]
    native = native_decoder(QUARANTINE)
    rows = tag_in_quarantine(native, pa.array(wal, pa.binary()), None)
    committed = pgo.Options(on_error="quarantine", transactions="committed")
    expected = pgo.Decoder(committed).decode(wal)
    got = pgo.decode_tagged(rows, native.catalog, committed, expected.outcomes)
    assert table_of(got.rejects) == table_of(expected.rejects)
    assert [reason for reason in got.rejects["reason"].to_pylist() if "unknown" in reason]
    assert got.table("public.orders")["id"].to_pylist() == [0, 1]
    with pytest.raises(pgo.DecodeError, match=r"^message 11, byte 2: "):
        pgo.decode_tagged(rows, native.catalog)
