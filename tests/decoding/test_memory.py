"""The bound on memory: a first `decode` takes its input, its output and at most 32 MB beyond."""

from __future__ import annotations

import gc
import sys

import pyarrow as pa
import pytest
from benchmarks import memory

from pgoutput_fast import Decoder, Options, encode
from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from support.forms import and_slow

if sys.platform != "linux":
    pytest.skip("peaks are read from /proc", allow_module_level=True)

TABLE = RelationSpec(16384, "public", "t", (ColumnSpec("content", 25),))
OPENING = (encode.encode_begin(1, 0, 7), encode.encode_relation(TABLE))
INSERT = encode.encode_insert(16384, ["a" * 1_000])


@pytest.mark.parametrize(
    ("name", "threads"),
    and_slow(
        [("wide binary, scale 0.5", 2)],
        [
            ("wide text, scale 0.5", 1),
            ("pgbench, scale 2", 1),
            ("wide text, scale 0.5", 2),
            ("wide binary, scale 0.5", 1),
            ("pgbench, scale 2", 2),
        ],
    ),
)
def test_corpora_stay_within_the_bound(name: str, threads: int) -> None:
    taken = memory.measure(name, threads)
    assert taken.input > 60 * memory.MB
    assert taken.output > 60 * memory.MB
    assert taken.beyond <= memory.BOUND


# What outgrows its buffers, and what is recorded beside the changes.
@pytest.mark.parametrize(
    "name",
    and_slow(
        ["text of 100 kB", "empty transactions"],
        ["text of 50 MB", "subtransactions", "200 relations with arrays"],
    ),
)
def test_what_once_took_several_times_its_size_stays_within_the_bound(name: str) -> None:
    assert memory.measure(name).beyond <= memory.BOUND


def test_a_thousand_relations_stay_within_the_bound() -> None:
    taken = memory.measure("1,000 relations in turn")
    assert taken.relations == 1_000
    assert taken.objects > 1_000 * 4_000
    assert taken.beyond <= memory.BOUND


@pytest.mark.slow
def test_ten_thousand_relations_take_what_they_are_said_to() -> None:
    taken = memory.measure("10,000 relations in turn")
    assert taken.relations == 10_000
    assert taken.beyond <= taken.allowed


@pytest.mark.slow
def test_the_peak_is_seen() -> None:
    taken = memory.measure("text of 100 kB")
    assert taken.input >= 100 * memory.MB
    assert taken.peak >= 0.9 * taken.output >= 80 * memory.MB


def _native(threads: int = 1) -> NativeDecoder:
    return NativeDecoder(Options(threads=threads), None, None)


@pytest.mark.parametrize("threads", and_slow([1], [4]))
def test_a_decoder_does_not_keep_rows_that_it_has_decoded(threads: int) -> None:
    tagger = _native()
    tagged, _ = tagger.tag([pa.array([*OPENING, *[INSERT] * 40_000], pa.binary())], None, None, True)
    assert tagged.nbytes > 40_000_000
    decoder = _native(threads)
    decoder.learn_from(tagger, 0)
    del tagger
    gc.collect()
    before = pa.total_allocated_bytes()
    changes, _ = decoder.decode(
        [pa.array([encode.encode_begin(2, 0, 8)], pa.binary())], None, None, [(tagged, None)]
    )
    assert sum(len(batch) for _, batch in changes) == 40_000
    del changes, tagged
    gc.collect()
    assert pa.total_allocated_bytes() < before - 40_000_000


def test_a_later_call_uses_the_memory_of_the_calls_before() -> None:
    decoder = _native()
    used = []
    for _ in range(4):
        decoder.decode([pa.array([*OPENING, INSERT, encode.encode_commit(1, 2, 0)], pa.binary())], None, None)
        (pool,) = (each for each in gc.get_referents(decoder) if type(each).__name__ == "UnusedMemory")
        (waiting,) = (
            each for each in gc.get_referents(pool) if any(type(one).__name__ == "WindowWork" for one in each)
        )
        used.append({id(each) for each in waiting})
    assert used[1] == used[2] == used[3]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_long_value_says_nothing_of_the_rows_behind_it(threads: int) -> None:
    """Memory for 20,000 rows of this length would be more than there is."""
    relation = RelationSpec(16401, "public", "t", (ColumnSpec("v", 25, key=True),))
    writer = Writer(4)
    wal = [*writer.begin(1, 100, 0), *writer.change(relation, "insert", new=["x" * 40_000_000])]
    wal += writer.change(relation, "insert", new=["y"]) * 20_000 + writer.commit(100, 108, 0)
    decoded = Decoder(Options(threads=threads)).decode(wal)
    assert sum(each.batch.num_rows for each in decoded.changes) == 20_001
