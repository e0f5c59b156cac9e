"""The messages that change a stream's state, and the relations that have changes."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast import encode
from pgoutput_fast._core.tagging.control_messages import control_messages

OUTSIDE, STREAMING, UNKNOWN = 0, 3, -1


def _selected(payloads: list[bytes], context: int) -> Any:
    return control_messages(pa.array(payloads, pa.binary()), context, True)


def _insert(oid: int, xid: int | None = None) -> bytes:
    return b"I" + (b"" if xid is None else struct.pack(">I", xid)) + struct.pack(">I", oid) + b"N\0\0"


def test_the_relations_of_changes() -> None:
    """Many oids, some of which come again and again, in any order; all 32 bits of an oid count."""
    chance = random.Random(7)
    oids = [0, 1, 2**31, 2**32 - 1, *(chance.randrange(2**32) for _ in range(3000))]
    often = chance.choices(oids, k=40)
    sent = chance.sample(oids, len(oids)) + [chance.choice(often) for _ in range(20_000)]
    assert _selected([_insert(oid) for oid in sent], OUTSIDE)["relations"] == sorted(set(oids))
    assert _selected([_insert(oid, 7) for oid in sent], STREAMING)["relations"] == sorted(set(oids))
    both = _selected([_insert(oid) for oid in sent], UNKNOWN)
    assert both["relations"] == []
    assert both["relations_before"][0] == sorted(set(oids))


def test_oids_that_take_turns() -> None:
    """However often two oids come in turn, only two are kept: no stream makes this grow."""
    multiplier = 2654435761
    first, second = (
        5,
        next(k for k in range(6, 10_000) if (k * multiplier % 2**32) >> 24 == 5 * multiplier % 2**32 >> 24),
    )
    found = _selected([_insert(oid) for oid in [first, second] * 50_000], OUTSIDE)
    assert found["relations"] == [first, second]


@pytest.mark.parametrize("context", [OUTSIDE, STREAMING])
def test_the_relations_of_a_truncate(context: int) -> None:
    xid = 9 if context == STREAMING else None
    whole = encode.encode_truncate([7, 8, 2**32 - 1], xid=xid)
    assert _selected([whole], context)["relations"] == [7, 8, 2**32 - 1]
    head = 1 if xid is None else 5
    wrong = struct.pack(">i", -1), struct.pack(">i", 2**31 - 1), struct.pack(">i", 4)
    cut = [whole[:end] for end in range(1, len(whole))]
    forged = [whole[:head] + count + whole[head + 4 :] for count in wrong]
    assert _selected([*cut, *forged], context)["relations"] == []


def test_plain_transactions_that_are_left_out() -> None:
    begin, commit = encode.encode_begin(100, 5, 7), encode.encode_commit(100, 108, 5)
    found = _selected([begin, _insert(3), commit, begin, begin], OUTSIDE)
    assert found["messages"] == [3, 4]
    assert [found[name].tolist() for name in ("begun", "ended", "xids", "commit_lsns")] == [
        [0],
        [2],
        [7],
        [100],
    ]
    assert found["commit_timestamps"].tolist() == [946_684_800_000_005]


def test_no_payloads() -> None:
    found = _selected([], UNKNOWN)
    assert found["relations_before"] == ([], [])
    assert len(found["begun"]) == 0
