"""Stage 3, slice: tuples of hand-made messages."""

from __future__ import annotations

import struct
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import DecodeError, encode
from pgoutput_fast.encode import UNCHANGED, Binary, ColumnSpec, RelationSpec

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
START = [encode.encode_begin(1, 0, 7), encode.encode_relation(T)]
HEAD = struct.pack(">I", 16384)


def rows(*payloads: bytes) -> list[dict[str, Any]]:
    names = ["_change_type", "_key_only", "_unchanged", "id", "note"]
    return pgo.decode([*START, *payloads]).table("public.t").select(names).to_pylist()


def row(change: str, key_only: bool, unchanged: list[str] | None, *values: Any) -> dict[str, Any]:
    return dict(
        zip(
            ["_change_type", "_key_only", "_unchanged", "id", "note"],
            (change, key_only, unchanged, *values),
            strict=True,
        )
    )


def test_every_kind_of_change() -> None:
    got = rows(
        encode.encode_insert(16384, ["1", Binary(b"a")]),
        encode.encode_update(16384, [Binary(b"\0\0\0\2"), None]),
        encode.encode_update(16384, ["3", UNCHANGED], key=["2", None]),
        encode.encode_update(16384, ["4", UNCHANGED], old=["3", "old"]),
        encode.encode_update(16384, [UNCHANGED, UNCHANGED], old=["3", UNCHANGED]),
        encode.encode_delete(16384, key=["4", None]),
        encode.encode_delete(16384, old=["4", "x"]),
        encode.encode_truncate([16384]),
    )
    assert got == [
        row("insert", False, None, 1, "a"),
        row("update_postimage", False, None, 2, None),
        row("update_preimage", True, None, 2, None), row("update_postimage", False, ["note"], 3, None),
        row("update_preimage", False, None, 3, "old"), row("update_postimage", False, None, 4, "old"),
        row("update_preimage", False, ["note"], 3, None), row("update_postimage", False, ["note"], 3, None),
        row("delete", True, None, 4, None),
        row("delete", False, None, 4, "x"),
        row("truncate", False, None, None, None),
    ]  # fmt: skip


TUPLE = encode.encode_tuple(["1", "x"])


@pytest.mark.parametrize(
    ("payload", "offset"),
    [
        (b"I" + HEAD + b"K" + TUPLE, 5), (b"I" + HEAD + b"O" + TUPLE, 5), (b"I" + HEAD + b"Z" + TUPLE, 5),
        (b"U" + HEAD + b"K" + TUPLE, 5 + 1 + len(TUPLE)), (b"U" + HEAD + b"K" + TUPLE + b"K" + TUPLE, 5 + 1 + len(TUPLE)),
        (b"D" + HEAD + b"N" + TUPLE, 5), (b"I" + HEAD + b"N" + TUPLE + b"\0", 6 + len(TUPLE)),
        (b"I" + HEAD + b"N" + encode.encode_tuple(["1"]), 6), (b"I" + HEAD + b"N" + encode.encode_tuple(["1"] * 3), 6),
        (b"I" + HEAD + b"N\xff\xff", 6), (b"I" + HEAD + b"N\0\2x", 8), (b"I" + HEAD + b"N\0\2nt\xff\xff\xff\xff", 10),
        (b"I" + HEAD + b"N\0\2nt\x7f\xff\xff\xff", 14), (b"I" + HEAD + b"N\0\2nb\0\0\0\5abcd", 18),
    ],
)  # fmt: skip
def test_malformed_tuples(payload: bytes, offset: int) -> None:
    with pytest.raises(DecodeError) as caught:
        rows(payload)
    assert (caught.value.seq, caught.value.relation, caught.value.byte_offset) == (2, "public.t", offset)


def test_errors_name_the_place_and_never_the_value() -> None:
    secret = "s3cret"
    decoder = pgo.Decoder()
    with pytest.raises(DecodeError) as caught:
        decoder.decode([*START, encode.encode_insert(16384, [secret, "x"])], lsn=[0, 0, 0x1_0000_00AB])
    error = caught.value
    assert (error.seq, error.lsn, error.relation, error.column, error.byte_offset) == (
        2,
        0x1_0000_00AB,
        "public.t",
        "id",
        13,
    )
    assert "1/AB" in str(error)
    assert secret not in str(error)


FIXTURES = [
    *START,
    encode.encode_origin(5, "o"),
    encode.encode_type(20001, "public", "mood"),
    encode.encode_insert(16384, ["1", "x"]),
    encode.encode_update(16384, ["2", UNCHANGED], old=["1", "x"]),
    encode.encode_delete(16384, key=["2", None]),
    encode.encode_truncate([16384], cascade=True),
    encode.encode_message(5, "prefix", b"content"),
    encode.encode_commit(1, 9, 0),
    encode.encode_stream_start(9, True),
    encode.encode_relation(T, xid=9),
    encode.encode_insert(16384, [Binary(b"\0\0\0\1"), "x"], xid=10),
    encode.encode_truncate([16384], xid=9),
    encode.encode_stream_stop(),
    encode.encode_stream_abort(9, 10, 5, 0),
    encode.encode_stream_prepare(1, 2, 0, 9, "gid"),
    encode.encode_commit_prepared(3, 4, 0, 9, "gid"),
    encode.encode_begin_prepare(5, 6, 0, 11, "gid"),
    encode.encode_prepare(5, 6, 0, 11, "gid"),
    encode.encode_rollback_prepared(6, 7, 0, 0, 11, "gid"),
]


def test_every_truncation_raises() -> None:
    pgo.decode(FIXTURES)
    for k, payload in enumerate(FIXTURES):
        for size in range(len(payload)):
            if payload[:1] == b"A" and size == 9:
                continue  # without position and time: that is how streaming=on sends it
            with pytest.raises(DecodeError) as caught:
                pgo.decode([*FIXTURES[:k], payload[:size]])
            assert caught.value.seq == k
            assert 0 <= (caught.value.byte_offset or 0) <= size


def test_every_changed_byte_raises_or_decodes() -> None:
    places = [0]
    for k, payload in enumerate(FIXTURES):
        for at in range(len(payload)):
            for value in (0, 0xFF, payload[at] ^ 1):
                changed = payload[:at] + bytes([value]) + payload[at + 1 :]
                mode = ("as_sent", "committed")[at % 2]
                options = pgo.Options(on_error="quarantine" if value else "raise", transactions=mode)  # type: ignore[arg-type]
                try:
                    out = pgo.decode([*FIXTURES[:k], changed, *FIXTURES[k + 1 :]], options=options)
                except DecodeError as error:
                    places.append((error.seq or 0) - k)
                else:
                    for each in out.changes:
                        each.batch.validate(full=True)
    assert min(places) == 0
