"""A call gives back all memory that it took: what is held does not grow with the number of calls."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.nested import EVERY
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.mirror import net_effect
from pgoutput_fast.segments import Source, list_segments, read_segment, segment_catalog, write_segment
from support.copying import check_mutated
from support.forms import and_slow
from support.streams import RandomChoices, by_fast, check_tagged, make_stream

if not hasattr(ctypes.CDLL(None), "mallinfo2"):
    pytest.skip("glibc 2.33 or later is asked for its memory", allow_module_level=True)

ROUNDS, CALLS = 20, 2
# Of a thousand messages and more. Two bytes a message are more.
BYTES, BLOCKS = 2_000, 200


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


def _held() -> tuple[int, int]:
    """(bytes of malloc and of Arrow, blocks of Python) that this process holds."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Memory
    found = ask()
    return int(found.uordblks) + int(found.hblkhd) + pa.total_allocated_bytes(), sys.getallocatedblocks()


def _leaves(call: Callable[[], object]) -> str | None:
    """What each call leaves behind, None for nothing. The first calls may: they fill what is kept on purpose."""
    for _ in range(ROUNDS):
        before = _held()
        for _ in range(CALLS):
            call()
        of_bytes, of_blocks = (
            (after - earlier) / CALLS for after, earlier in zip(_held(), before, strict=True)
        )
        if of_bytes < BYTES and of_blocks < BLOCKS:
            return None
    return f"{of_bytes:.0f} bytes, {of_blocks:.0f} blocks"


STREAM = make_stream(RandomChoices(5), 400)
WITHOUT_SESSIONS = next(
    found for seed in count() if not (found := make_stream(RandomChoices(seed), 400)).sessions
)
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


SHORT = ("committed", "an error", "threads")


@pytest.mark.unsanitized
@pytest.mark.parametrize("name", and_slow(SHORT, [name for name in CALLS_OF if name not in SHORT]))
def test_nothing_stays_behind(name: str) -> None:
    assert _leaves(CALLS_OF[name]) is None


@pytest.mark.unsanitized
def test_nothing_stays_behind_segments(tmp_path: Path) -> None:
    tagged, state = pgo.tag(WITHOUT_SESSIONS.payloads)
    write_segment(tmp_path, tagged, state, source=Source("7", "shop", "s"))
    catalog, (found,) = segment_catalog(tmp_path), list_segments(tmp_path)
    assert _leaves(lambda: pgo.decode_tagged(read_segment(found.path), catalog)) is None


@pytest.mark.exhaustive
@pytest.mark.unsanitized
def test_what_stays_behind_is_seen() -> None:
    kept = list[object]()
    assert _leaves(lambda: kept.append(bytearray(2 * BYTES)))
    assert _leaves(lambda: kept.append([object() for _ in range(2 * BLOCKS)]))
