"""The contract of Decoder, decode(), Decoded and Options."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import DecodeError, Decoder, Options, StreamState, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from support.streams import RandomChoices, make_stream, rows_of

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
BEGIN, R, COMMIT = (
    encode.encode_begin(100, 0, 7),
    encode.encode_relation(T),
    encode.encode_commit(100, 108, 0),
)


def insert(k: int) -> bytes:
    return encode.encode_insert(16384, [str(k), "x"])


WAL = [BEGIN, R, insert(1), insert(2), COMMIT]


def ids(out: pgo.Decoded) -> list[Any]:
    return [value for each in out.changes for value in each.batch.column("id").to_pylist()]


def chunked() -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(WAL[:2]), pa.array([], pa.binary()), pa.array(WAL[2:])])


@pytest.mark.parametrize(
    "payloads",
    [
        WAL, tuple(WAL), iter(WAL), (p for p in WAL), [bytearray(p) for p in WAL], [memoryview(p) for p in WAL],
        pa.array(WAL, pa.binary()), pa.array(WAL, pa.large_binary()), pa.array(WAL, pa.binary()).cast(pa.binary_view()),
        pa.array([b"xx", *WAL, b"y"])[1:6], chunked(), np.array(WAL, object),
    ],
    ids=lambda payloads: type(payloads).__name__,
)  # fmt: skip
def test_inputs_that_are_taken(payloads: Any) -> None:
    assert ids(pgo.decode(payloads)) == [1, 2]


@pytest.mark.parametrize(
    "payloads",
    [
        b"bytes", "text", 5, None, {"a": b"b"}, ["text"], [None], [b"B", None], [1], pa.array(["text"]), pa.array([1]),
        pa.array([b"B", None]), pa.chunked_array([pa.array(["x"])]), pa.chunked_array([], pa.string()),
        pa.table({"payload": WAL}), pa.array([b"12345"], pa.binary(5)), pa.array(["x"]).dictionary_encode(),
    ],
    ids=lambda payloads: type(payloads).__name__,
)  # fmt: skip
def test_inputs_that_are_not(payloads: Any) -> None:
    with pytest.raises(TypeError, match="payloads must be"):
        pgo.decode(payloads)


@pytest.mark.parametrize(
    "payloads", [[], (), pa.array([], pa.binary()), pa.chunked_array([], pa.binary()), iter([])]
)
def test_nothing_is_taken_too(payloads: Any) -> None:
    assert pgo.decode(payloads).changes == []


def test_positions_and_ordinals() -> None:
    out = pgo.decode(WAL, lsn=[0, None, 5, 6, 7], seq=[10, 20, 30, 40, 50])
    batch = out.changes[0].batch
    assert batch.column("_seq").to_pylist() == [30, 40]
    assert batch.column("_lsn").to_pylist() == [5, 6]
    assert batch.column("_txn").to_pylist() == [10, 10]
    decoder = Decoder()
    decoder.decode(WAL, seq=np.arange(5) + 100)
    assert decoder.state.next_seq == 105
    assert decoder.decode([BEGIN, insert(3)]).changes[0].batch.column("_seq").to_pylist() == [106]
    assert pgo.decode(WAL, lsn=pa.chunked_array([[1, 2], [3, 4, 5]])).changes[0].batch.column(
        "_lsn"
    ).to_pylist() == [3, 4]
    assert pgo.decode(WAL, lsn=pa.array([9, 1, 2, 3, 4, 5])[1:]).changes[0].batch.column(
        "_lsn"
    ).to_pylist() == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"lsn": [1]}, ValueError), ({"seq": [1, 2, 3, 4]}, ValueError), ({"seq": [1, 2, 2, 3, 4]}, ValueError),
        ({"seq": [5, 4, 3, 2, 1]}, ValueError), ({"seq": [-1, 0, 1, 2, 3]}, ValueError), ({"lsn": ["a"] * 5}, ValueError),
        ({"lsn": [1.5] * 5}, TypeError), ({"lsn": pa.array([1.0] * 5)}, TypeError), ({"lsn": 5}, TypeError),
    ],
)  # fmt: skip
def test_wrong_positions(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        pgo.decode(WAL, **arguments)
    assert not isinstance(caught.value, DecodeError)


def test_a_failed_call_is_taken_back() -> None:
    decoder = Decoder()
    decoder.decode([BEGIN, R])
    before = decoder.state
    new = encode.encode_relation(RelationSpec(16385, "public", "new", (ColumnSpec("x", 23),)))
    for bad in (insert(1)[:-1], b"?", encode.encode_insert(16384, ["x", "y"])):
        with pytest.raises(DecodeError) as caught:
            decoder.decode([insert(1), new, COMMIT, BEGIN, bad])
        assert decoder.state == before
        assert decoder.catalog == before.catalog
        assert pickle.loads(pickle.dumps(caught.value)).seq == caught.value.seq == 6
    assert ids(decoder.decode([insert(5), COMMIT])) == [5]


def test_rejects_of_a_failed_call_do_not_come_with_the_next() -> None:
    days = RelationSpec(16385, "public", "days", (ColumnSpec("id", 23, key=True), ColumnSpec("day", 1082)))

    def told(*cells: str) -> list[bytes]:
        rows = [encode.encode_insert(16385, [str(k), cell]) for k, cell in enumerate(cells)]
        return [BEGIN, encode.encode_relation(days), *rows, COMMIT]

    decoder = Decoder()
    with pytest.raises(DecodeError, match="message 1002"):
        decoder.decode(told("infinity", *["2026-01-01"] * 999, "no day"))
    out = decoder.decode(told("2026-01-02"))
    assert out.rejects.num_rows == 0
    assert decoder.decode(told("infinity")).rejects.num_rows == 1


@pytest.mark.parametrize("mode", ["as_sent", "committed"])
def test_the_state_travels_at_every_message(mode: Any) -> None:
    for seed in range(5):
        stream = make_stream(RandomChoices(seed), 10)
        whole = Decoder(Options(transactions=mode))
        decoder = Decoder(Options(transactions=mode))
        for k, payload in enumerate(stream.payloads):
            a, b = whole.decode([payload]), decoder.decode([payload])
            assert rows_of(a) == rows_of(b)
            assert a.outcomes.equals(b.outcomes)
            state = decoder.state
            assert state == whole.state
            assert StreamState.from_json(state.to_json()) == state
            decoder = Decoder(Options(transactions=mode), pickle.loads(pickle.dumps(state)))
            assert decoder.state == state, k


def test_a_state_of_another_format_is_refused() -> None:
    for text in ("{}", '{"format": 99}', "[]"):
        with pytest.raises(ValueError, match="format"):
            StreamState.from_json(text)


def test_windows_change_nothing() -> None:
    """More messages than a window holds, with sessions that start around its end."""
    payloads = [BEGIN, R, *[insert(k) for k in range(70_000)], COMMIT]
    out = pgo.decode(payloads)
    table = out.table("public.t")
    assert table.column("id").to_pylist() == list(range(70_000))
    assert table.column("_seq").to_pylist() == list(range(2, 70_002))
    start, stop = encode.encode_stream_start(9, True), encode.encode_stream_stop()
    for before in (65_535, 65_536, 65_537):
        decoder = Decoder()
        streamed = encode.encode_insert(16384, ["1", "x"], xid=9)
        decoder.decode([start, encode.encode_relation(T, xid=9), *[streamed] * (before - 2)])
        assert decoder.decode([streamed, stop]).changes[0].batch.num_rows == 1
        decoder.decode([encode.encode_stream_start(9, False), streamed])
        decoder.start_session()
        out = decoder.decode([BEGIN, R, insert(4), COMMIT])
        assert ids(out) == [4]
        assert out.outcomes.column("outcome").to_pylist() == ["aborted", "committed"]


def test_stream_takes_what_comes() -> None:
    batches = [
        WAL[:2],
        pa.record_batch({"payload": WAL[2:3], "lsn": [5], "seq": [10]}),
        pa.table({"data": WAL[3:]}),
        pa.array([], pa.binary()),
    ]
    pieces = list(Decoder().stream(batches))
    assert [ids(piece) for piece in pieces] == [[], [1], [2], []]
    assert pieces[1].changes[0].batch.column("_seq").to_pylist() == [10]
    with pytest.raises(TypeError, match="payload"):
        list(Decoder().stream([pa.table({"x": WAL})]))


# --- Decoded ------------------------------------------------------------------------------------------------


def versions(*specs: RelationSpec) -> pgo.Decoded:
    payloads = [BEGIN]
    for spec in specs:
        payloads += [encode.encode_relation(spec), encode.encode_insert(spec.oid, ["1"] * len(spec.columns))]
    return pgo.decode([*payloads, COMMIT])


def spec(*columns: tuple[str, int, int], name: str = "t", namespace: str = "public") -> RelationSpec:
    return RelationSpec(16384, namespace, name, tuple(ColumnSpec(*column) for column in columns))


def modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


def test_tables_widen_and_keep_the_order() -> None:
    out = versions(
        spec(("a", 21, -1), ("b", 700, -1), ("c", 1700, modifier(5, 2)), ("gone", 25, -1)),
        spec(("a", 20, -1), ("b", 701, -1), ("c", 1700, modifier(6, 1))),
        spec(("a", 23, -1), ("b", 700, -1), ("c", 1700, modifier(5, 2)), ("gone", 1043, -1)),
    )
    table = out.table("public.t")
    kinds = {field.name: field.type for field in table.schema}
    assert (kinds["a"], kinds["b"], kinds["c"], kinds["gone"]) == (
        pa.int64(),
        pa.float64(),
        pa.decimal128(7, 2),
        pa.string(),
    )
    assert table.column("gone").to_pylist() == ["1", None, "1"]
    assert table.column("_seq").to_pylist() == [2, 4, 6]
    assert out.table(16384).equals(table)


def test_versions_that_no_table_can_hold() -> None:
    out = versions(spec(("a", 23, -1)), spec(("a", 25, -1)))
    with pytest.raises(ValueError, match="version") as caught:
        out.table("public.t")
    assert all(str(each.relation.version) in str(caught.value) for each in out.changes)
    assert len(out.changes) == 2


def test_tables_by_the_name_at_the_time() -> None:
    out = versions(
        spec(("a", 23, -1)), spec(("a", 23, -1), name="Order Lines"), spec(("a", 23, -1), name="t2")
    )
    assert out.table('public."Order Lines"').num_rows == out.table("public.t2").num_rows == 1
    assert out.table(16384).num_rows == 3
    for missing in ("public.orders", "public.order lines", "t", 5):
        with pytest.raises(KeyError, match="Order Lines"):
            out.table(missing)


def test_numpy_without_copies() -> None:
    out = pgo.decode(WAL)
    arrays = out.changes[0].to_numpy()
    assert arrays["id"].tolist() == [1, 2]
    assert arrays["id"].ctypes.data == out.changes[0].batch.column("id").buffers()[1].address
    assert list(arrays) == out.changes[0].batch.schema.names


def test_metadata_of_fields_and_schema() -> None:
    schema = pgo.decode(WAL).changes[0].batch.schema
    assert schema.metadata[b"pg.relation"] == b"t"
    assert schema.metadata[b"pg.relation_oid"] == b"16384"
    assert schema.field("id").metadata == {
        b"pg.type_oid": b"23",
        b"pg.type": b"int4",
        b"pg.typmod": b"-1",
        b"pg.key": b"true",
    }
    unknown = versions(spec(("m", 99999, -1))).changes[0].batch.schema.field("m")
    assert unknown.metadata[b"pg.unknown"] == b"true"


def test_the_prefix_of_metadata_columns() -> None:
    clash = RelationSpec(16384, "public", "t", (ColumnSpec("_seq", 23),))
    decoder = Decoder()
    decoder.decode([BEGIN, encode.encode_relation(clash)])
    with pytest.raises(ValueError, match="metadata_prefix") as caught:
        decoder.decode([encode.encode_insert(16384, ["1"])])
    assert not isinstance(caught.value, DecodeError)
    assert decoder.state.next_seq == 2
    other = Decoder(Options(metadata_prefix="pg_"), decoder.state)
    assert other.decode([encode.encode_insert(16384, ["1"])]).changes[0].batch.column("_seq").to_pylist() == [
        1
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"transactions": "later"}, {"on_error": "ignore"}, {"unrepresentable": "drop"}, {"numeric": "int"}, {"uuid": "bytes"},
        {"numeric": pa.decimal128(5, -1)}, {"numeric": pa.decimal128(5, 6)}, {"threads": 0}, {"batch_rows": 1},
        {"batch_bytes": 0}, {"metadata_prefix": 5}, {"strings": "bytes"},
    ],
)  # fmt: skip
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Options(**options)


def test_options_travel() -> None:
    options = Options(numeric=pa.decimal128(20, 4), transactions="committed")
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(pickle.loads(pickle.dumps(options)))


def test_unrepresentable_raises_even_under_quarantine() -> None:
    nan = RelationSpec(16384, "public", "t", (ColumnSpec("n", 1700, modifier(5, 2)),))
    payloads = [BEGIN, encode.encode_relation(nan), encode.encode_insert(16384, ["NaN"])]
    for on_error in ("raise", "quarantine"):
        with pytest.raises(DecodeError, match="NaN"):
            pgo.decode(payloads, options=Options(on_error=on_error, unrepresentable="raise"))  # type: ignore[arg-type]
    out = pgo.decode(payloads)
    assert out.changes[0].batch.column("_unrepresentable").to_pylist() == [["n"]]
    assert out.rejects.column("raw").to_pylist() == [b"NaN"]


def test_many_malformed_values_take_no_longer() -> None:
    bad, good = encode.encode_insert(16384, ["x", "y"]), insert(1)
    out = pgo.decode([BEGIN, R, *[bad, good] * 20_000], options=Options(on_error="quarantine"))
    assert out.rejects.num_rows == 20_000
    assert ids(out) == [1] * 20_000


def test_a_relation_that_a_prepared_stream_described() -> None:
    """It is known from the prepare on: a server may take it for sent, whether the transaction commits or not."""
    orders, writer = (
        RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),)),
        Writer(streaming="on", two_phase=True),
    )
    wal = writer.stream_start(7)
    wal += writer.change(orders, "insert", new=["1"], xid=7) + writer.stream_stop()
    wal += writer.stream_prepare(7, 100, 108, 0, "g")
    begin, _relation, *rest = (
        writer.begin(8, 200, 0) + writer.change(orders, "insert", new=["2"]) + writer.commit(200, 208, 0)
    )
    wal += [begin, *rest, *writer.rollback_prepared(7, 108, 308, 0, 0, "g")]
    wal += writer.begin(9, 400, 0) + writer.change(orders, "insert", new=["3"]) + writer.commit(400, 408, 0)
    out = pgo.decode(wal, options=pgo.Options(transactions="committed"))
    assert out.table("public.orders")["id"].to_pylist() == [2, 3]
