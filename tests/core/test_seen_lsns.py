"""Logical messages outside of transactions come once: which of their LSNs a state keeps."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode

MOST = 1024  # LSNs of logical messages that a state keeps


def given(lsns: Sequence[int], decoder: pgo.Decoder | None = None) -> list[int]:
    """LSNs of the logical messages that a decoder gives, each of which has its own."""
    wal = [encode.encode_message(lsn, "p", b"", transactional=False) for lsn in lsns]
    found: list[int] = (decoder or pgo.Decoder()).decode(wal).messages.column("lsn").to_pylist()
    return found


def last_state(decoder: pgo.Decoder) -> dict[str, Any]:
    values = decoder.state.values
    assert values is not None
    return values


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        ([10, 20, 10, 20], [10, 20]),
        ([60, 55, 60, 55], [60, 55]),
        # A damaged one silences no others.
        ([10, 2**63 - 1, 20, 30, 20, 2**63 - 1], [10, 2**63 - 1, 20, 30]),
        ([2**63 - 1, *range(1, MOST), 1, MOST, MOST], [2**63 - 1, *range(1, MOST), MOST]),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_a_logical_message_came_before_if_its_lsn_did(sent: list[int], wanted: list[int], cut: bool) -> None:
    if not cut:
        assert given(sent) == wanted
        return
    state, found = None, []
    for lsn in sent:
        decoder = pgo.Decoder(state=state)
        found += given([lsn], decoder)
        state = pgo.StreamState.from_json(decoder.state.to_json())
        assert state == decoder.state
    assert found == wanted


def test_a_state_keeps_the_largest_lsns_of_logical_messages() -> None:
    decoder = pgo.Decoder()
    assert len(given(range(2, 2 * MOST + 1, 2), decoder)) == MOST
    values = last_state(decoder)
    assert (values["message_floor"], values["message_lsns"]) == (0, [2] * MOST)
    # One more: of those up to the smallest it is not known any more which of them came.
    assert given([2 * MOST + 2, 2, 1, 3], decoder) == [2 * MOST + 2, 3]
    values = last_state(decoder)
    assert (values["message_floor"], values["message_lsns"]) == (3, [1] + [2] * (MOST - 1))
    again = pgo.Decoder(state=pgo.StreamState.from_json(decoder.state.to_json()))
    for each in (decoder, again):
        assert given([1, 2, 3, 4, 2 * MOST, 2 * MOST + 1], each) == [2 * MOST + 1]
    assert again.state == decoder.state


@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_of_logical_messages_does_not_depend_on_their_order(seed: int) -> None:
    chance = random.Random(seed)
    lsns = [chance.randrange(1, 2 ** chance.choice([11, 12, 40, 63])) for _ in range(4 * MOST)]
    largest = sorted(set(lsns))[-MOST - 1 :]
    wanted = (largest[0], [after - before for before, after in itertools.pairwise(largest)])
    for order in (lsns, sorted(lsns), sorted(lsns, reverse=True)):
        whole, parts = pgo.Decoder(), pgo.Decoder()
        found = given(order, whole)
        assert len(found) == len(set(found))
        cuts = sorted(chance.randrange(len(order)) for _ in range(20))
        apart = [given(order[x:y], parts) for x, y in itertools.pairwise([0, *cuts, len(order)])]
        assert list(itertools.chain.from_iterable(apart)) == found
        for decoder in (whole, parts):
            values = last_state(decoder)
            assert (values["message_floor"], values["message_lsns"]) == wanted


def test_a_call_that_fails_leaves_the_lsns_of_logical_messages() -> None:
    decoder = pgo.Decoder()
    given(range(1, MOST + 1), decoder)
    before = decoder.state
    wal = [encode.encode_message(lsn, "p", b"", transactional=False) for lsn in range(MOST, 4 * MOST)]
    with pytest.raises(pgo.DecodeError):
        decoder.decode([*wal, b"?"])
    assert decoder.state == before
    assert given([1, MOST, MOST + 1], decoder) == [MOST + 1]


def state_with(**changes: object) -> pgo.StreamState:
    """The state behind a logical message with LSN 50, with other values; None stands for none."""
    decoder = pgo.Decoder()
    given([50], decoder)
    document = json.loads(decoder.state.to_json())
    document["state"].update(changes)
    document["state"] = {name: value for name, value in document["state"].items() if value is not ...}
    return pgo.StreamState.from_json(json.dumps(document | {"held": None}))


@pytest.mark.parametrize(
    ("message_lsn", "repeated_lsn", "floor"),
    [(60, 50, 60), (60, 60, 60), (50, 60, 60), (60, 0, 60), (0, 0, 0)],
)
def test_states_that_know_two_lsns_of_logical_messages(
    message_lsn: int, repeated_lsn: int, floor: int
) -> None:
    """Earlier versions kept the last one, and up to which all came before."""
    old = {"message_lsn": message_lsn, "repeated_lsn": repeated_lsn}
    decoder = pgo.Decoder(state=state_with(message_lsns=..., message_floor=..., **old))
    decoder.decode([])
    values = last_state(decoder)
    assert (values["message_floor"], values["message_lsns"]) == (floor, [])
    assert given([49, 50, 55, 60, 61], decoder) == [lsn for lsn in (49, 50, 55, 60, 61) if lsn > floor]


@pytest.mark.parametrize(
    "changes",
    [
        {"message_floor": -1},
        {"message_floor": 2**63},
        {"message_floor": True},
        {"message_floor": "1"},
        {"message_floor": 2**63 - 1},
        {"message_lsns": [0]},
        {"message_lsns": [5, -1]},
        {"message_lsns": [2**63 - 1, 1]},
        {"message_lsns": [10**30]},
        {"message_lsns": [1.5]},
        {"message_lsns": [True]},
        {"message_lsns": "5"},
        {"message_lsns": {"5": 5}},
        {"message_lsns": None},
        {"message_lsns": [1] * (MOST + 1)},
    ],
)
def test_states_whose_logical_messages_are_none(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a stream state"):
        pgo.Decoder(state=state_with(**changes))


def test_logical_messages_cost_the_same_however_many_there_were() -> None:
    def seconds(lsns: range) -> float:
        wal = pa.array(
            [encode.encode_message(lsn, "p", b"", transactional=False) for lsn in lsns], pa.binary()
        )
        spent = []
        for _ in range(5):
            decoder, begin = pgo.Decoder(), time.process_time()
            assert decoder.decode(wal).messages.num_rows == len(lsns)
            spent.append(time.process_time() - begin)
        return min(spent)

    assert seconds(range(1, 100_001)) < 40 * seconds(range(1, 10_001))
    # Each of them is below all before it, until there is no space left.
    assert seconds(range(1023, 0, -1)) < 1
