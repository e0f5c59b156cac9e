"""What callers may do that a stream never does: share a decoder, pass odd positions, hand in half a document."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import Catalog, StreamState, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("at", 1083)))
OPEN = [encode.encode_begin(100, 0, 7), encode.encode_relation(T)]


@pytest.mark.parametrize("transactions", ["as_sent", "committed"])
def test_threads_that_share_a_decoder_take_turns(transactions: Any) -> None:
    decoder = pgo.Decoder(pgo.Options(transactions=transactions))
    decoder.decode(OPEN)
    rows = pa.array([encode.encode_insert(16384, [str(k), "10:00:00"]) for k in range(20_000)], pa.binary())
    found: list[int] = []

    def work() -> None:
        for _ in range(4):
            out = decoder.decode(rows)
            found.append(sum(each.batch.num_rows for each in out.changes))
            assert decoder.state.next_seq >= len(rows)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert decoder.state.next_seq == 2 + 16 * len(rows)
    found.append(sum(e.batch.num_rows for e in decoder.decode([encode.encode_commit(100, 108, 0)]).changes))
    assert sum(found) == 16 * len(rows)


@pytest.mark.parametrize("seq", [[None, 1], [None, None], [0, (1 << 63) - 1], [0, 1 << 64]])
def test_ordinals_that_are_none_are_refused(seq: list[int | None]) -> None:
    decoder = pgo.Decoder()
    with pytest.raises(ValueError, match="seq must"):
        decoder.decode(OPEN, seq=seq)
    assert decoder.state.next_seq == 0


def test_positions_beyond_int64_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="lsn must fit int64"):
        pgo.decode(OPEN[:1], lsn=[1 << 64])


@pytest.mark.parametrize("lsn", [[-1], pa.array([-1]), np.array([-1]), range(-1, 0)])
def test_negative_positions_are_a_value_error(lsn: Any) -> None:
    with pytest.raises(ValueError, match=r"lsn\[0\] cannot be negative, as -1 is"):
        pgo.decode(OPEN[:1], lsn=lsn)
    with pytest.raises(ValueError, match=r"lsn\[0\] cannot be negative, as -1 is"):
        pgo.tag(OPEN[:1], lsn=lsn)


@pytest.mark.parametrize("text", ["[]", "{}", "5", '{"format": 1}', "x"])
def test_documents_that_are_no_state_and_no_catalog_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a|Expecting"):
        StreamState.from_json(text)
    with pytest.raises(ValueError, match=r"not a|Expecting"):
        Catalog.from_json(text)
    whole = json.loads(StreamState().to_json())
    with pytest.raises(ValueError, match=r"not a|Expecting"):
        StreamState.from_json(json.dumps({**whole, "catalog": json.loads(text) if text != "x" else None}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["held"], 5), (["held"], "x"), (["held"], {}), (["state"], []), (["state"], "x"), (["state"], {}),
        (["state", "next_seq"], "x"), (["state", "next_seq"], 1 << 64), (["state", "context"], 7),
        (["state", "current"], {}), (["state", "streamed"], None), (["state", "streamed"], [[]]),
        (["state", "prepared"], 5), (["state", "relations"], []), (["state", "relations", "16384"], 5),
        (["state", "types"], None), (["state", "current", "gid"], 1.5), (["state", "current", "xid"], -1),
        (["catalog", "relations", 0, "name"], None), (["catalog", "relations", 0, "oid"], "x"),
        (["catalog", "relations", 0, "oid"], -1),
    ],
    ids=str,
)  # fmt: skip
def test_damaged_states_are_value_errors(path: list[str | int], value: object) -> None:
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    decoder.decode(OPEN)
    document = part = json.loads(decoder.state.to_json())
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(ValueError, match="not a"):
        pgo.Decoder(decoder.options, StreamState.from_json(json.dumps(document)))


@pytest.mark.parametrize("part", ["streamed", "prepared"])
def test_a_state_has_one_transaction_for_an_xid(part: str) -> None:
    """Of two that a damaged state has, none is dropped silently."""
    prepared = [encode.encode_begin_prepare(1, 2, 0, 7, "a"), encode.encode_prepare(1, 2, 0, 7, "a")]
    streamed = [encode.encode_stream_start(8, True), encode.encode_stream_stop()]
    decoder = pgo.Decoder()
    decoder.decode([*prepared, *streamed])
    document = json.loads(decoder.state.to_json())
    transactions = document["state"][part]
    assert len(transactions) == 1
    transactions.append({**transactions[0], "txn": 5})
    with pytest.raises(ValueError, match=f"two {part} transactions with xid {transactions[0]['xid']}"):
        pgo.Decoder(state=StreamState.from_json(json.dumps(document)))


def test_times_go_to_numpy_without_a_copy() -> None:
    each = pgo.decode([*OPEN, encode.encode_insert(16384, ["1", "10:00:00.5"])]).changes[0]
    times = each.to_numpy()["at"]
    assert times.dtype == np.dtype("m8[us]")
    assert times.astype(np.int64).tolist() == [36_000_500_000]
    assert times.__array_interface__["data"][0] == each.batch.column("at").buffers()[1].address


def test_integers_with_nulls_stay_integers_in_numpy() -> None:
    big = 9007199254740993  # a float64 cannot hold it
    batch = pa.record_batch({"n": pa.array([big, None], pa.int64()), "m": pa.array([1, 2], pa.int16())})
    relation = pgo.Relation(1, 2, "public", "t", "d", ())
    arrays = pgo.RelationBatch(relation, batch.slice(0)).to_numpy()
    assert arrays["n"].dtype == "int64"
    assert arrays["n"].tolist() == [big, None]
    assert pgo.RelationBatch(relation, batch.slice(1)).to_numpy()["n"].tolist() == [None]
    assert arrays["m"].__array_interface__["data"][0] == batch.column("m").buffers()[1].address


@pytest.mark.parametrize(
    "call",
    [
        lambda: pgo.Decoder(options={}),
        lambda: pgo.Decoder(state={}),
        lambda: pgo.Decoder(catalog=[]),
        lambda: pgo.decode_tagged(None, pgo.Catalog()),
        lambda: pgo.decode_tagged(pgo.tag([])[0], None),
        lambda: pgo.decode({b"B"}),
        lambda: pgo.decode(np.array([b"B", b"C"])),
    ],
)
def test_things_of_the_wrong_type_are_type_errors(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


def _tagged() -> tuple[pa.RecordBatch, pgo.StreamState]:
    return pgo.tag(
        [encode.encode_begin(1, 0, 7), encode.encode_relation(T), encode.encode_insert(T.oid, ["1", None])]
    )


def test_payloads_that_are_not_what_their_tags_say_are_refused() -> None:
    tagged, state = _tagged()
    rows = tagged.to_pylist()
    for change in ({"payload": encode.encode_insert(T.oid + 1, ["1", None])}, {"kind": ord("D")}):
        wrong = pa.RecordBatch.from_pylist([rows[2] | change], pgo.TAGGED_SCHEMA)
        with pytest.raises(pgo.DecodeError, match="than its tags say"):
            pgo.decode_tagged(wrong, state.catalog)


def test_a_catalog_that_lacks_the_version_is_named_as_the_reason() -> None:
    tagged, _ = _tagged()
    with pytest.raises(pgo.DecodeError, match="catalog does not know"):
        pgo.decode_tagged(tagged, pgo.Catalog())
