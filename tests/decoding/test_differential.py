"""The decoder against the reference decoder, over random streams and damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.forms import and_exhaustive, and_slow
from support.strategies import MODES, DrawnChoices, cuts, damaged_streams, streams
from support.streams import RandomChoices, Stream, check, check_tagged, damage, make_stream

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(streams(), cuts(), MODES, st.sampled_from(["raise", "quarantine"]), st.integers(0, 2))
def test_what_servers_send(stream: Stream, ends: list[int], mode: str, on_error: str, reopen: int) -> None:
    check(stream, ends, reopen, transactions=mode, on_error=on_error)


@SETTINGS
@given(streams(malformed=True), cuts(), MODES, st.sampled_from(["null", "raise"]))
def test_values_that_no_server_sends(
    stream: Stream, ends: list[int], mode: str, unrepresentable: str
) -> None:
    check(stream, ends, 1, transactions=mode, on_error="quarantine", unrepresentable=unrepresentable)


@SETTINGS
@given(damaged_streams(), cuts(), MODES, st.sampled_from(["raise", "quarantine"]))
def test_damaged_streams(stream: Stream, ends: list[int], mode: str, on_error: str) -> None:
    check(stream, ends, 1, transactions=mode, on_error=on_error)


@SETTINGS
@given(st.data(), MODES)
def test_tagged_in_any_order(data: st.DataObject, mode: str) -> None:
    choices = DrawnChoices(data.draw)
    check_tagged(make_stream(choices, data.draw(st.integers(1, 8))), choices, transactions=mode)


@pytest.mark.parametrize("mode", ["as_sent", "committed"])
@pytest.mark.parametrize(
    ("damages", "cases"), and_exhaustive(and_slow([(1, 30)], [(0, 50), (4, 30)]), [(0, 150)])
)
def test_many_random_streams(mode: str, damages: int, cases: int) -> None:
    """Larger streams than hypothesis makes; `python fuzz/mutate.py` does the same for hours."""
    for seed in range(cases):
        choices = RandomChoices(seed * 7 + damages)
        stream = make_stream(choices, 12, malformed=damages > 0)
        stream = damage(choices, stream, damages)
        ends = sorted({choices.below(len(stream.payloads) + 1) for _ in range(4)})
        try:
            check(stream, ends, 2, transactions=mode, on_error="quarantine")
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {stream}") from problem
