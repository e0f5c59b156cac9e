"""A relation version has one meaning: what Type messages say of its columns' types cannot change under it."""

from __future__ import annotations

from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import DecodeError, encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec

DOMAIN = 20001
T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23), ColumnSpec("d", DOMAIN)))
BEGIN, COMMIT = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)
R, ROW = encode.encode_relation(T), encode.encode_insert(T.oid, ["1", "2"])
START, MORE, STOP = (
    encode.encode_stream_start(9, True),
    encode.encode_stream_start(9, False),
    encode.encode_stream_stop(),
)
R9, ROW9 = encode.encode_relation(T, xid=9), encode.encode_insert(T.oid, ["1", "2"], xid=9)
END9 = encode.encode_stream_commit(9, 300, 308, 0)


def called(name: str, namespace: str = "pg_catalog", xid: int | None = None) -> bytes:
    return encode.encode_type(DOMAIN, namespace, name, xid=xid)


# A domain over int4, whose oid stands for text later: in the same transaction, in another, inside a stream and outside.
CHANGED = [
    [BEGIN, called("int4"), R, ROW, called("text"), R, ROW, COMMIT],
    [BEGIN, called("int4"), R, ROW, COMMIT, BEGIN, called("text"), R, ROW, COMMIT],
    [START, called("int4", xid=9), R9, ROW9, STOP, BEGIN, called("text"), R, ROW, COMMIT, MORE, ROW9, STOP, END9],
    [BEGIN, called("int4"), R, ROW, COMMIT, START, called("text", xid=9), R9, ROW9, STOP, END9],
    [BEGIN, R, ROW, called("int4"), R, ROW, COMMIT],
    [BEGIN, called("mood", "public"), R, ROW, called("_mood", "public"), R, ROW, COMMIT],
]  # fmt: skip
VIEWS = ["as_sent", "committed"]


def offset_of_type(message: bytes) -> int:
    return message.index(DOMAIN.to_bytes(4, "big"))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("payloads", CHANGED)
def test_another_type_under_a_known_version_is_an_error(payloads: list[bytes], view: str) -> None:
    """Without it, tagged rows, which name their version only, would be decoded as what was said last."""
    at = [k for k, each in enumerate(payloads) if each[:1] == b"R"][1]
    for read in (
        lambda: pgo.decode(payloads, options=pgo.Options(transactions=view)),
        lambda: pgo.tag(payloads),
    ):
        with pytest.raises(DecodeError, match="another type than") as caught:
            read()
        assert (caught.value.seq, caught.value.relation, caught.value.column) == (at, "public.t", "d")
        assert caught.value.byte_offset == offset_of_type(payloads[at])


def everything(payloads: list[bytes], cuts: tuple[int, ...], **options: Any) -> Any:
    """Rows with their schemas, and rejects, of calls that end at `cuts`, each in a decoder made from the last state."""
    rows, rejects, state = [], [], None
    for begin, end in zip((0, *cuts), (*cuts, len(payloads)), strict=True):
        decoder = pgo.Decoder(pgo.Options(**options), state)
        out = decoder.decode(payloads[begin:end])
        state = pgo.StreamState.from_json(decoder.state.to_json())
        for each in out.changes:
            described = str(each.batch.schema), str(each.relation.to_dict())
            rows += [(row["_seq"], row, described) for row in each.batch.to_pylist()]
        rejects += out.rejects.to_pylist()
    return sorted(rows, key=lambda row: row[0]), sorted(rejects, key=lambda row: row["seq"])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("payloads", CHANGED)
def test_quarantined_it_is_the_relation_that_is_lost_however_calls_are_cut(
    payloads: list[bytes], view: str
) -> None:
    options = {"on_error": "quarantine", "transactions": view}
    whole = everything(payloads, (), **options)
    rows, rejects = whole
    at = [k for k, each in enumerate(payloads) if each[:1] == b"R"][1]
    assert [row["seq"] for row in rejects] == [at, at + 1]
    assert {row["relation"] for row in rejects} == {"public.t"}
    assert len(rows) + 1 == sum(each[:1] == b"I" for each in payloads)
    assert len({described for _, _, described in rows}) == 1
    for cut in range(1, len(payloads)):
        assert everything(payloads, (cut,), **options) == whole
    assert everything(payloads, tuple(range(1, len(payloads))), **options) == whole


@pytest.mark.parametrize("view", VIEWS)
def test_a_renamed_type_is_no_news_however_calls_are_cut(view: str) -> None:
    """Of an enum the wire tells the name only: under a new one it is what it was."""
    payloads = [
        BEGIN, called("mood", "public"), R, ROW, COMMIT,
        START, called("feeling", "public", 9), R9, ROW9, STOP, END9,
        BEGIN, called("feeling", "s"), R, ROW, COMMIT,
    ]  # fmt: skip
    whole = everything(payloads, (), transactions=view)
    assert [row["d"] for _, row, _ in whole[0]] == ["2"] * 3
    assert len({described for _, _, described in whole[0]}) == 1
    assert "public.mood" in whole[0][0][2][0]
    for cut in range(1, len(payloads)):
        assert everything(payloads, (cut,), transactions=view) == whole
    tagged, state = pgo.tag(payloads)
    again = pgo.decode_tagged(tagged, state.catalog)
    assert [each.relation for each in again.changes] == [
        each.relation for each in pgo.decode(payloads).changes
    ]


def test_a_call_that_fails_leaves_no_version_behind() -> None:
    decoder = pgo.Decoder()
    decoder.decode([BEGIN])
    before = decoder.state
    with pytest.raises(DecodeError):
        decoder.decode([called("int4"), R, ROW, b"?"])
    assert decoder.state == before
    out = decoder.decode([called("text"), R, ROW, COMMIT])
    assert out.table("public.t").column("d").to_pylist() == ["2"]
