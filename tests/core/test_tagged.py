"""Tagged payloads: what is beside them, and that they decode by themselves."""

from __future__ import annotations

import pickle
import struct

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import DecodeError, Options, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from support.streams import RandomChoices, check_tagged, make_stream, rows_of

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
U = RelationSpec(16385, "public", "u", (ColumnSpec("id", 23),))
STREAM = [
    encode.encode_begin(100, 0, 7), encode.encode_relation(T), encode.encode_relation(U), encode.encode_insert(16384, ["1"]),
    encode.encode_truncate([16384, 16385]), encode.encode_commit(100, 108, 0), encode.encode_stream_start(9, True),
    encode.encode_relation(T, xid=9), encode.encode_insert(16384, ["2"], xid=10), encode.encode_stream_stop(),
    encode.encode_stream_commit(9, 300, 308, 5), encode.encode_message(5, "p", b"", transactional=False),
]  # fmt: skip


def test_the_columns_beside_the_payloads() -> None:
    batch, state = pgo.tag(STREAM, lsn=[0] * 3 + [77] * 9)
    assert batch.schema.equals(pgo.TAGGED_SCHEMA)
    t, u = (relation.version for relation in state.catalog.relations)
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    assert columns["seq"] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11]
    assert bytes(columns["kind"]) == b"BRRITTCSRIEcM"
    assert columns["relation"] == [
        None,
        16384,
        16385,
        16384,
        16384,
        16385,
        None,
        None,
        16384,
        16384,
        None,
        None,
        None,
    ]
    assert columns["version"] == [None, t, u, t, t, u, None, None, t, t, None, None, None]
    assert columns["txn"] == [0] * 7 + [6] * 5 + [None]
    assert columns["xid"] == [7] * 7 + [9] * 5 + [None]
    assert columns["subxid"] == [None] * 8 + [9, 10, None, None, None]
    assert columns["in_stream"] == [False] * 7 + [True] * 4 + [False] * 2
    assert columns["commit_lsn"] == [100] * 7 + [None] * 4 + [300, None]
    assert columns["lsn"] == [None] * 3 + [77] * 10
    # The first row of a Truncate has it as it came, each further one says it of its own relation alone.
    assert columns["payload"][4:6] == [STREAM[4], encode.encode_truncate([16385])]


def test_a_session_that_starts_is_a_row_of_kind_0() -> None:
    decoder = pgo.Decoder()
    decoder.decode(STREAM[:2])
    decoder.start_session()
    batch, state = pgo.tag(STREAM[:2], decoder.state)
    assert batch.column("kind").to_pylist() == [0, ord("B"), ord("R")]
    assert batch.column("seq").to_pylist() == [2, 2, 3]
    assert batch.column("payload").to_pylist()[0] == b""
    assert pgo.decode_tagged(batch, state.catalog).changes == []


def test_tagging_goes_on_where_it_stopped() -> None:
    whole, _ = pgo.tag(STREAM)
    state, parts = None, []
    for payload in STREAM:
        batch, state = pgo.tag([payload], state)
        state = pickle.loads(pickle.dumps(state))
        parts.append(batch)
    assert pa.Table.from_batches(parts).combine_chunks().equals(pa.Table.from_batches([whole]))


@pytest.mark.parametrize("mode", ["as_sent", "committed"])
def test_any_subset_in_any_order(mode: str) -> None:
    for seed in range(60):
        choices = RandomChoices(seed)
        check_tagged(make_stream(choices, 10), choices, transactions=mode)


def test_subsets_and_permutations() -> None:
    batch, state = pgo.tag(STREAM)
    rows = {(row["_seq"], row["relation"]): row for row in rows_of(pgo.decode(STREAM))}
    for k in range(batch.num_rows):
        for row in rows_of(pgo.decode_tagged(batch.slice(k, 1), state.catalog)):
            assert row == rows.pop((row["_seq"], row["relation"]))
    assert not rows
    backwards = batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))
    out = pgo.decode_tagged(pa.Table.from_batches([backwards]), state.catalog)
    assert sum(each.batch.num_rows for each in out.changes) == 4
    assert out.truncates.num_rows == 1


def test_what_is_missing_or_wrong() -> None:
    batch, state = pgo.tag(STREAM)
    with pytest.raises(DecodeError, match="catalog does not know"):
        pgo.decode_tagged(batch, pgo.Catalog())
    with pytest.raises(ValueError, match="outcomes"):
        pgo.decode_tagged(batch, state.catalog, Options(transactions="committed"))
    with pytest.raises(TypeError, match="columns"):
        pgo.decode_tagged(batch.select(["seq", "payload"]), state.catalog)
    out = pgo.decode_tagged(batch, pgo.Catalog(), Options(on_error="quarantine"))
    assert set(out.rejects.column("seq").to_pylist()) == {3, 4, 8}
    assert pgo.decode_tagged(batch.slice(0, 0), state.catalog).changes == []
    with pytest.raises(DecodeError):
        pgo.tag([b"?"])


def test_tags_that_are_not_those_of_the_payload() -> None:
    table = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23),))
    batch, state = pgo.tag(
        [
            *(encode.encode_stream_start(7, True), encode.encode_relation(table, xid=7)),
            *(encode.encode_insert(16384, ["1"], xid=8), encode.encode_truncate([16384], xid=8)),
            *(encode.encode_stream_stop(), encode.encode_begin(100, 0, 9)),
            *(
                encode.encode_relation(table),
                encode.encode_insert(16384, ["2"]),
                encode.encode_commit(100, 108, 0),
            ),
        ]
    )
    rows = batch.to_pylist()
    streamed, truncate, plain = (
        next(k for k, row in enumerate(rows) if row["kind"] == ord(kind) and row["in_stream"] == inside)
        for kind, inside in (("I", True), ("T", True), ("I", False))
    )
    # The last number is the byte of the payload that disagrees.
    for at, tag, value, byte in (
        (streamed, "subxid", 7, 1),
        (truncate, "subxid", 7, 1),
        (plain, "subxid", 9, 0),
        (plain, "kind", 0, 0),
        (streamed, "kind", ord("D"), 0),
        (plain, "relation", 16385, 0),
        (truncate, "relation", 16385, 0),
        (streamed, "payload", encode.encode_insert(16385, ["1"], xid=8), 5),
        (plain, "payload", encode.encode_insert(16385, ["2"]), 1),
        (plain, "payload", encode.encode_update(16385, ["2"]), 0),
    ):
        wrong = [{**row, tag: value} if k == at else row for k, row in enumerate(rows)]
        # In the order of the stream, as the first row, and backwards: the scan takes rows for consecutive messages.
        for order in (
            [*range(len(rows))],
            [at, *(k for k in range(len(rows)) if k != at)],
            [*range(len(rows))][::-1],
        ):
            tagged = pa.RecordBatch.from_pylist([wrong[k] for k in order], pgo.TAGGED_SCHEMA)
            with pytest.raises(
                DecodeError, match=f"^message {rows[at]['seq']}.*has another kind or relation"
            ) as raised:
                pgo.decode_tagged(tagged, state.catalog)
            assert raised.value.byte_offset == byte
            out = pgo.decode_tagged(tagged, state.catalog, Options(on_error="quarantine"))
            assert out.rejects.column("seq").to_pylist() == [rows[at]["seq"]]
            assert out.rejects.column("byte_offset").to_pylist() == [byte]
    # Tags that nobody needs may be left out.
    for tag in ("subxid", "relation"):
        tagged = pa.RecordBatch.from_pylist([{**row, tag: None} for row in rows], pgo.TAGGED_SCHEMA)
        assert sum(each.batch.num_rows for each in pgo.decode_tagged(tagged, state.catalog).changes) == 3


@pytest.mark.parametrize("at", range(13))
def test_payloads_that_were_cut(at: int) -> None:
    batch, state = pgo.tag(STREAM)
    payloads = batch.column("payload").to_pylist()
    for size in range(len(payloads[at])):
        cut = pa.array([*payloads[:at], payloads[at][:size], *payloads[at + 1 :]], pa.binary())
        damaged = batch.set_column(11, "payload", cut)
        out = pgo.decode_tagged(damaged, state.catalog, Options(on_error="quarantine"))
        if bytes([batch.column("kind")[at].as_py()]) in b"IT":
            assert batch.column("seq")[at].as_py() in out.rejects.column("seq").to_pylist()


TWO_PHASE = [
    encode.encode_begin(100, 0, 7), encode.encode_origin(55, "north"), encode.encode_relation(T), encode.encode_insert(16384, ["1"]),
    encode.encode_commit(100, 108, 0), encode.encode_begin_prepare(200, 208, 3, 8, "gid"), encode.encode_origin(56, "south"),
    encode.encode_insert(16384, ["2"]), encode.encode_prepare(200, 208, 3, 8, "gid"), encode.encode_stream_start(9, True),
    encode.encode_origin(57, "east"), encode.encode_insert(16384, ["3"], xid=9), encode.encode_stream_stop(),
    encode.encode_stream_abort(9, 10), encode.encode_commit_prepared(300, 308, 4, 8, "gid"), encode.encode_stream_abort(9, 9),
    encode.encode_stream_start(11, True), encode.encode_stream_stop(), encode.encode_stream_prepare(400, 408, 5, 11, "other"),
    encode.encode_rollback_prepared(408, 500, 5, 6, 11, "other"), encode.encode_stream_abort(99, 99),
]  # fmt: skip


@pytest.mark.parametrize("backwards", [False, True])
def test_the_tables_beside_the_changes_come_from_tagged_payloads_too(backwards: bool) -> None:
    whole = pgo.decode(TWO_PHASE)
    tagged, state = pgo.tag(TWO_PHASE)
    if backwards:
        tagged = tagged.take(pa.array(range(tagged.num_rows - 1, -1, -1)))
    out = pgo.decode_tagged(tagged, state.catalog)
    for name, order in {
        "transactions": "seq",
        "outcomes": "at_seq",
        "messages": "seq",
        "truncates": "seq",
    }.items():
        expected = getattr(whole, name).to_pylist()
        assert sorted(getattr(out, name).to_pylist(), key=lambda row, key=order: row[key]) == expected
    assert whole.transactions.column("origin").to_pylist().count("south") == 1


def test_tables_with_other_columns_and_states_that_hold_changes() -> None:
    batch, state = pgo.tag(STREAM)
    outcomes = pgo.decode(STREAM).outcomes
    committed = Options(transactions="committed")
    whole = rows_of(pgo.decode_tagged(batch, state.catalog, committed, outcomes))
    assert (
        rows_of(pgo.decode_tagged(batch, state.catalog, committed, pa.Table.from_batches([outcomes])))
        == whole
    )
    for tagged in (batch.drop_columns(["kind"]), batch.select(batch.schema.names[::-1]), STREAM):
        for options in (Options(), committed):
            with pytest.raises(TypeError, match="tagged payloads must"):
                pgo.decode_tagged(tagged, state.catalog, options, outcomes)
    for others in (outcomes.drop_columns(["subxid"]), batch, 5):
        with pytest.raises(TypeError, match="outcomes must"):
            pgo.decode_tagged(batch, state.catalog, committed, others)  # type: ignore[arg-type]
    decoder = pgo.Decoder(committed)
    decoder.decode(STREAM[:4])
    with pytest.raises(ValueError, match="has changes that wait for their commit"):
        pgo.tag(STREAM[4:], decoder.state)
    with pytest.raises(TypeError, match="state must be"):
        pgo.tag(STREAM, state.to_json())  # type: ignore[arg-type]


def test_arrays_whose_offsets_are_damaged_are_refused() -> None:
    batch, state = pgo.tag(STREAM[:4])
    outcomes = pgo.decode(STREAM).outcomes
    offsets = pa.py_buffer(struct.pack("<5i", 0, 1_000_000, 21, 30, 44))
    damaged = pa.Array.from_buffers(pa.binary(), 4, [None, offsets, pa.py_buffer(b"x" * 44)])
    batch = pa.RecordBatch.from_arrays([*batch.columns[:-1], damaged], schema=batch.schema)
    for options in (Options(), Options(transactions="committed")):
        with pytest.raises(ValueError, match="offset"):
            pgo.decode_tagged(batch, state.catalog, options, outcomes)
