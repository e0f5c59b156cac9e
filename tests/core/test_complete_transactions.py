"""Where complete plain transactions lie among payloads."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast import encode
from pgoutput_fast._core.tagging.complete_transactions import complete_ranges

BEGIN, COMMIT = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)
Y2000 = 946_684_800_000_000  # time 0 on the wire, in microseconds since 1970
INSERT = encode.encode_insert(16384, ["1"])
ALONE = encode.encode_message(5, "p", b"", transactional=False)
START, STOP = encode.encode_stream_start(9, True), encode.encode_stream_stop()
PREPARED = [encode.encode_begin_prepare(1, 2, 0, 8, "g"), INSERT, encode.encode_prepare(1, 2, 0, 8, "g")]
PLAIN = [BEGIN, INSERT, COMMIT]


def complete(
    *payloads: bytes, between: bool = True, least: int = 1, kind: pa.DataType = None
) -> list[tuple[int, int]]:
    return complete_ranges(pa.array(payloads, kind or pa.binary()), between, least)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_whole_plain_transactions(kind: pa.DataType) -> None:
    assert complete(kind=kind) == []
    assert complete(*PLAIN, kind=kind) == [(0, 3)]
    assert complete(*PLAIN, ALONE, *PLAIN, kind=kind) == [(0, 7)]
    padded = pa.array([b"x", *PLAIN, b"x"], kind)
    assert complete_ranges(padded.slice(1, 3), True, 1) == [(0, 3)], "an array's offset counts"


def test_what_has_not_ended_is_left_out() -> None:
    assert complete(*PLAIN, BEGIN, INSERT) == [(0, 3)]
    assert complete(BEGIN, INSERT) == []
    assert complete(INSERT, COMMIT, *PLAIN, between=False) == [(2, 5)]
    assert complete(INSERT, between=False) == []


def test_a_range_may_begin_with_the_rest_of_the_open_transaction() -> None:
    rest = pa.array([INSERT, COMMIT, *PLAIN, BEGIN])
    assert complete_ranges(rest, False, 1, (100, Y2000)) == [(0, 5)]
    for other in ((101, Y2000), (100, Y2000 + 1)):
        assert complete_ranges(rest, False, 1, other) == [(2, 5)], (
            "its Commit is not the one that was announced"
        )
    assert complete_ranges(pa.array([INSERT]), False, 1, (100, Y2000)) == []
    assert complete_ranges(pa.array([START, *PLAIN]), False, 1, (100, Y2000)) == []


def test_anything_else_ends_a_range() -> None:
    for other in ([START, INSERT, STOP], PREPARED, [encode.encode_stream_commit(9, 1, 2, 0)]):
        n = len(other)
        assert complete(*PLAIN, *other, *PLAIN) == [(0, 3), (3 + n, 6 + n)]
        assert complete(*PLAIN, *other, *PLAIN, BEGIN) == [(0, 3), (3 + n, 6 + n)]
        assert complete(BEGIN, INSERT, *other, *PLAIN) == [(2 + n, 5 + n)]


@pytest.mark.parametrize("bad", [b"", b"?", BEGIN[:-1], BEGIN + b"x", COMMIT, COMMIT[:-1], BEGIN])
def test_what_would_be_refused_is_in_no_range(bad: bytes) -> None:
    known = complete(*PLAIN, bad, *PLAIN)
    assert known[0] == (0, 3)
    # Behind a Commit that fails no transaction is open; what follows another failure is not sure.
    assert known[1:] == ([(4, 7)] if bad[:1] == b"C" else [])
    inside = complete(BEGIN, bad, COMMIT, *PLAIN)
    assert (inside == [(0, 2), (3, 6)]) if bad == COMMIT else ((0, 3) not in inside)


def test_another_commit_ends_no_transaction() -> None:
    for other in (encode.encode_commit(101, 108, 0), encode.encode_commit(100, 108, 1)):
        assert complete(BEGIN, INSERT, other, *PLAIN) == [(3, 6)]


def test_a_cut_must_be_worth_while() -> None:
    payloads = [*PLAIN, *PREPARED, *PLAIN, *PLAIN]
    assert complete(*payloads, least=4) == [(6, 12)]
    assert complete(*PLAIN, least=100) == [(0, 3)], "but not where there is nothing to cut"


def test_damaged_offsets() -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 5, 2)))
    array = pa.BinaryArray.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"xxxxx")])
    with pytest.raises(ValueError, match="offsets"):
        complete_ranges(array, True, 1)
