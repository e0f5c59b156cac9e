"""The bound on memory: a first `decode` takes its input, its output and at most 32 MB beyond."""

from __future__ import annotations

import sys

import pytest
from benchmarks import memory

if sys.platform != "linux":
    pytest.skip("peaks are read from /proc", allow_module_level=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["wide text, scale 0.5", "wide binary, scale 0.5", "pgbench, scale 2"])
def test_corpora_stay_within_the_bound(name: str, threads: int) -> None:
    taken = memory.measure(name, threads)
    assert taken.input > 60 * memory.MB
    assert taken.output > 60 * memory.MB
    assert taken.beyond <= memory.BOUND


# What outgrows its buffers, and what is recorded beside the changes.
@pytest.mark.parametrize(
    "name",
    ["text of 100 kB", "text of 50 MB", "empty transactions", "subtransactions", "200 relations with arrays"],
)
def test_what_once_took_several_times_its_size_stays_within_the_bound(name: str) -> None:
    assert memory.measure(name).beyond <= memory.BOUND


def test_a_thousand_relations_stay_within_the_bound() -> None:
    taken = memory.measure("1,000 relations in turn")
    assert taken.relations == 1_000
    assert taken.objects > 1_000 * 4_000
    assert taken.beyond <= memory.BOUND


def test_ten_thousand_relations_take_what_they_are_said_to() -> None:
    taken = memory.measure("10,000 relations in turn")
    assert taken.relations == 10_000
    assert taken.beyond <= taken.allowed


def test_the_peak_is_seen() -> None:
    taken = memory.measure("text of 100 kB")
    assert taken.input >= 100 * memory.MB
    assert taken.peak >= 0.9 * taken.output >= 80 * memory.MB
