"""A call gives back all memory that it took: what is held does not grow with the number of calls."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.nested import EVERY
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.mirror import net_effect
from pgoutput_fast.segments import Source, list_segments, read_segment, segment_catalog, write_segment
from support.copying import check_mutated
from support.streams import RandomChoices, Stream, by_fast, check_tagged, make_stream

if sys.platform != "linux":
    pytest.skip("glibc is asked for its memory", allow_module_level=True)

ROUNDS, CALLS = 5, 2
# Of a thousand messages and more. Two bytes a message are more.
BOUND = 2_000


class _Memory(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def _held() -> int:
    """The bytes that this process holds of malloc and of Arrow."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Memory
    found = ask()
    return int(found.uordblks) + int(found.hblkhd) + pa.total_allocated_bytes()


def _left(call: Callable[[], object]) -> float:
    """Bytes that a call leaves behind: the least of several rounds, because the first ones fill what is kept on purpose."""
    found = []
    for _ in range(ROUNDS):
        before = _held()
        for _ in range(CALLS):
            call()
        found.append((_held() - before) / CALLS)
    return min(found)


STREAM = make_stream(RandomChoices(5), 400)
WITHOUT_SESSIONS = Stream(STREAM.payloads[: min(STREAM.sessions)], STREAM.lsns[: min(STREAM.sessions)], set())
MALFORMED = make_stream(RandomChoices(6), 400, malformed=True)
TABLE = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


def _changes(whole: bool) -> pa.Table:
    """Updates of nine rows, of a table with a key or with whole old rows."""
    writer, notes = Writer(), dict[int, str]()
    wal = writer.begin(7, 100, 0)
    for k in range(3_000):
        row, note = k % 9, "x" * (k % 7)
        old = [str(row), notes.get(row, "")] if whole else None
        wal += writer.change(TABLE, "update", new=[str(row), note], old=old)
        notes[row] = note
    wal += writer.commit(100, 108, 0)
    return pgo.decode(wal, options=pgo.Options(transactions="committed")).table("public.t")


CHANGES = {whole: _changes(whole) for whole in (False, True)}


def _damaged_copies() -> None:
    dice = random.Random(3)
    for _ in range(20):
        check_mutated(dice, dice.choices([*EVERY.values()], k=5), "quarantine")


CALLS_OF: dict[str, Callable[[], object]] = {
    "as sent": lambda: by_fast(STREAM),
    "committed": lambda: by_fast(STREAM, range(0, 1_000, 97), transactions="committed"),
    "state, by pickle": lambda: by_fast(STREAM, range(0, 1_000, 300), 1, transactions="committed"),
    "state, by JSON; stream": lambda: by_fast(STREAM, range(0, 1_000, 300), 2, transactions="committed"),
    "quarantine": lambda: by_fast(MALFORMED, on_error="quarantine"),
    "quarantine, committed": lambda: by_fast(MALFORMED, on_error="quarantine", transactions="committed"),
    "an error": lambda: by_fast(MALFORMED),
    "threads": lambda: by_fast(STREAM, threads=3, batch_rows=50),
    "tagged": lambda: check_tagged(WITHOUT_SESSIONS, RandomChoices(1)),
    "tagged, committed": lambda: check_tagged(WITHOUT_SESSIONS, RandomChoices(2), transactions="committed"),
    "plain": lambda: pgo.decode(WITHOUT_SESSIONS.payloads, options=pgo.Options(plain=True)),
    "described": lambda: [pgo.describe(each) for each in STREAM.payloads[:300]],
    "copies": _damaged_copies,
    "net effect": lambda: net_effect(CHANGES[False], ["id"]),
    "net effect, no key": lambda: net_effect(CHANGES[True], []),
}


@pytest.mark.unsanitized
@pytest.mark.parametrize("name", CALLS_OF)
def test_nothing_stays_behind(name: str) -> None:
    assert _left(CALLS_OF[name]) < BOUND


@pytest.mark.unsanitized
def test_nothing_stays_behind_segments(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WITHOUT_SESSIONS.payloads)
    write_segment(tmp_path, tagged, state, source=Source("7", "shop", "s"))
    catalog, (found,) = segment_catalog(tmp_path), list_segments(tmp_path)
    assert _left(lambda: pgo.decode_tagged(read_segment(found.path), catalog)) < BOUND


@pytest.mark.unsanitized
def test_what_stays_behind_is_seen() -> None:
    kept = list[bytearray]()
    assert _left(lambda: kept.append(bytearray(2 * BOUND))) > BOUND
