"""Runs work under failing allocations: `python starving.py LIBRARY SCENARIO TRIES` prints the outcome of each failure.

LIBRARY is out_of_memory.cpp, compiled and preloaded. TRIES allocations are tried, spread evenly; 0 tries every
allocation. Each is tried twice: first it alone fails, then it and all later allocations fail. Standard output has one
line per failure: its ordinal, a tab, and the outcome. A forbidden action kills the process.

`python starving.py python SCENARIO STEP` makes every STEP-th allocation of Python itself fail, each in its own fork:
alone, and with all later allocations. The lines are the same. A fork that dies has a line about it.

`python starving.py limited MIB` works with a limited address space: 1, 2, ... MIB MiB more than the process had before.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# This file also runs as a program.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.compute

import pgoutput_fast as pgo
from cells.nested import EVERY, TYPES
from pgoutput_fast import Decoded, Decoder, Options, StreamState, encode
from pgoutput_fast._core.copy.slot_rows import CopiedRows
from pgoutput_fast._core.copy.table_rows import CopyRows
from pgoutput_fast._core.rows.planning import use_windows
from pgoutput_fast._core.tagging.control_messages import control_messages
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from support.copying import COMMIT_LSN, copied, inserted, relation_of
from support.paths import FIXTURES

RECORDS = ("transactions", "outcomes", "truncates", "messages", "rejects")
GOOD = ("right", "MemoryError")


@dataclass
class Scenario:
    """`make` returns an object, `work` calls it and returns the result, `state` returns the object's state."""

    make: Callable[[], Any]
    work: Callable[[Any], Any]
    state: Callable[[Any], Any] = lambda subject: None
    # Whether the object can be reused after an error.
    again: bool = True


# ---- payloads -----------------------------------------------------------------------------------------------------


def every_type(binary: bool) -> list[bytes]:
    """Inserts with a column of each type, also with values that have no Arrow form."""
    values = {}
    for name, cells in EVERY.items():
        good = [pair[binary] for pair in cells.both] + (cells.binary if binary else cells.text)
        values[name] = good + (cells.unrepresentable_binary if binary else cells.unrepresentable_text)
    columns = [
        pgo.Column(f"c{k}", EVERY[name].oid, EVERY[name].typmod)
        for k, name in enumerate(values)
        if values[name]
    ]
    usable = [each for each in values.values() if each]
    rows = [[None if k % 17 == 16 else each[k % len(each)] for each in usable] for k in range(40)]
    relation = relation_of(*columns)
    text = frozenset() if binary else frozenset(column.name for column in columns)
    return inserted(relation, rows, text)


def fixture(name: str) -> list[bytes]:
    """The messages of a fixture, as a server sent them."""
    lines = (FIXTURES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [bytes.fromhex(line.split()[1]) for line in lines if line.strip() and not line.startswith("#")]


def stories() -> list[bytes]:
    """Sessions, streams, subtransactions, prepared transactions with long names, origins, messages, and damage."""
    t = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("v", 25)))
    long = "a name that no small string can store in place, "
    found = [
        encode.encode_type(20001, "public", "mood " + long, xid=None),
        *_prepared(t, 5, long + "5"),
        *_block(t, 9, 900, True),
        *_block(t, 10, 901, True),
        *_block(t, 9, 902, False),
        encode.encode_stream_abort(9, 902),
        *_prepared(t, 6, long + "6"),
        b"K" + b"\0" * 40,  # damaged: it is not known which transaction it ended
        encode.encode_stream_commit(9, 300, 308, 0),
        *_prepared(t, 7, long + "5"),
        b"I\0\0",
        *_block(t, 11, 903, True),
        *_block(t, 10, 904, False),
    ]
    return found * 2


def _block(t: RelationSpec, xid: int, subxid: int, first: bool) -> list[bytes]:
    return [
        encode.encode_stream_start(xid, first),
        encode.encode_origin(1, "an origin with a long name that is nobody's"),
        encode.encode_type(20001 + xid, "public", "a type with a long name that is nobody's", xid=subxid),
        encode.encode_relation(t, xid=subxid),
        *(encode.encode_insert(16384, [str(k), "x" * k], xid=subxid) for k in range(20)),
        encode.encode_truncate([16384], xid=subxid),
        encode.encode_message(7, "prefix", b"content" * 9, xid=subxid),
        encode.encode_stream_stop(),
    ]


def _prepared(t: RelationSpec, xid: int, gid: str) -> list[bytes]:
    return [
        encode.encode_begin_prepare(100, 108, 0, xid, gid),
        encode.encode_relation(t),
        *(encode.encode_insert(16384, [str(k), "y" * k]) for k in range(20)),
        encode.encode_prepare(100, 108, 0, xid, gid),
    ]


# ---- results ------------------------------------------------------------------------------------------------------


def given(out: Decoded) -> Any:
    """The whole result as bytes, because NaN does not equal NaN."""
    changes = [(str(each.relation), each.batch.serialize().to_pybytes()) for each in out.changes]
    return changes, tables(out)


def tables(out: Decoded) -> Any:
    return [getattr(out, name).serialize().to_pybytes() for name in RECORDS]


def state_of(decoder: Decoder) -> Any:
    return decoder.state.to_json(), [relation.version for relation in decoder.catalog.relations]


def decoding(payloads: list[bytes], before: list[bytes] = [], **options: Any) -> Scenario:  # noqa: B006
    def make() -> Decoder:
        decoder = Decoder(Options(**options), catalog=pgo.Catalog(types=TYPES))
        if before:
            decoder.decode(before)
        return decoder

    array = pa.array(payloads, pa.binary())  # Arrow crashes if memory runs out while it makes an array
    return Scenario(make, lambda decoder: decoder.decode(array), state_of)


def spilling(payloads: list[bytes], before: list[bytes]) -> Scenario:
    directory = tempfile.mkdtemp()
    return decoding(
        payloads,
        before,
        transactions="committed",
        memory_limit=1,
        spill_directory=directory,
        on_error="quarantine",
    )


def tagging(payloads: list[bytes], before: list[bytes]) -> Scenario:
    _, state = pgo.tag(before) if before else (None, None)
    array = pa.array(payloads, pa.binary())

    def work(_: Any) -> Any:
        tagged, after = pgo.tag(array, state)
        return tagged, after.to_json()

    return Scenario(lambda: None, work, lambda _: state.to_json() if state is not None else None)


def decoding_tagged(payloads: list[bytes]) -> Scenario:
    tagged, state = pgo.tag(payloads)
    return Scenario(lambda: None, lambda _: pgo.decode_tagged(tagged, state.catalog))


def loading(payloads: list[bytes]) -> Scenario:
    decoder = Decoder(Options(on_error="quarantine"))
    decoder.decode(payloads)
    text = decoder.state.to_json()

    def work(_: Any) -> Any:
        return Decoder(Options(on_error="quarantine"), state=StreamState.from_json(text)).state.to_json()

    return Scenario(lambda: None, work)


def copying(binary: bool) -> Scenario:
    names = [name for name, cells in EVERY.items() if cells.both]
    relation = relation_of(
        *(pgo.Column(f"c{k}", EVERY[name].oid, EVERY[name].typmod) for k, name in enumerate(names))
    )
    cells = [[pair[binary] for pair in EVERY[name].both] for name in names]
    stream = copied([[each[k % len(each)] for each in cells] for k in range(60)])
    text = frozenset() if binary else frozenset(f"c{k}" for k in range(len(names)))

    def work(rows: CopyRows) -> Any:
        for at in range(0, len(stream), 50_000):
            rows.write(stream[at : at + 50_000])
        rows.finish()
        return rows.take_batches(), rows.take_rejects()

    def make() -> CopyRows:
        return CopyRows(relation, Options(batch_rows=25), TYPES, COMMIT_LSN, text, window_bytes=3_000)

    return Scenario(make, work, again=False)


def pulling(payloads: list[bytes]) -> Scenario:
    stream = copied([[k.to_bytes(8, "big"), payload] for k, payload in enumerate(payloads)])

    def work(rows: CopiedRows) -> Any:
        found = [rows.feed(pa.py_buffer(stream[at : at + 1_000])) for at in range(0, len(stream), 1_000)]
        rows.finish()
        return found

    return Scenario(CopiedRows, work, again=False)


def controls(payloads: list[bytes]) -> Any:
    found = control_messages(pa.array(payloads, pa.binary()), 0, True)
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in found.values()]


def scenarios() -> dict[str, Callable[[], Scenario]]:
    streamed, two_phase = fixture("v4_parallel_binary_18"), fixture("v4_parallel_two_phase_18")
    half = len(streamed) // 2
    careful = {"on_error": "quarantine"}
    told = stories()
    plain = [bytes(p) for p in fixture("v1_text_18")]
    return {
        "text": lambda: decoding(every_type(False)),
        "binary": lambda: decoding(every_type(True)),
        "strings as views": lambda: decoding(every_type(False), strings="string_view"),
        "small batches": lambda: decoding(every_type(True), batch_rows=7),
        "streams": lambda: decoding(streamed[half:], streamed[:half]),
        "two-phase": lambda: decoding(two_phase),
        "stories": lambda: decoding(told, **careful),
        "stories again": lambda: decoding(told, told, **careful),
        "stories go on": lambda: decoding(told[40:], told[:40], **careful),
        "threads 2": lambda: decoding(every_type(False) + streamed, threads=2),
        "threads 3": lambda: decoding(told, told, threads=3, **careful),
        "committed": lambda: decoding(told, transactions="committed", **careful),
        "committed goes on": lambda: spilling(streamed[half:], streamed[:half]),
        "spilled": lambda: spilling(told, []),
        "tag": lambda: tagging(streamed, []),
        "tag goes on": lambda: tagging(streamed[half:], streamed[:half]),
        "decode_tagged": lambda: decoding_tagged(two_phase + streamed),
        "state": lambda: loading(told),
        "tables": lambda: Scenario(lambda: Decoder(Options(**careful)).decode(told), tables),
        "copy binary": lambda: copying(True),
        "copy text": lambda: copying(False),
        "pull": lambda: pulling(plain),
        "controls": lambda: Scenario(lambda: None, lambda _: controls(told + plain)),
    }


def result_of(found: Any) -> Any:
    """The result in a form that can be compared."""
    if isinstance(found, Decoded):
        return given(found)
    if isinstance(found, pa.RecordBatch):
        return found.serialize().to_pybytes()
    if isinstance(found, list | tuple):
        return [result_of(each) for each in found]
    return found


# ---- failures -----------------------------------------------------------------------------------------------------


def outcome(shim: Any, scenario: Scenario, expected: Any, which: int, then_all: int) -> tuple[int, str]:
    """(number of allocations, outcome of the failure of one of them)."""
    subject = scenario.make()
    before = scenario.state(subject)
    shim.starve(which, then_all)
    try:
        found = scenario.work(subject)
    except MemoryError:
        count = shim.feed()
    except BaseException as error:
        shim.feed()
        return 0, f"{type(error).__name__}: {error}"
    else:
        count = shim.feed()
        return count, "right" if result_of(found) == expected else "wrong"
    if not shim.starved():
        return count, "MemoryError without a cause"
    if not scenario.again:
        return count, "MemoryError"
    if scenario.state(subject) != before:
        return count, "another state"
    if result_of(scenario.work(subject)) != expected:
        return count, "wrong the next time"
    return count, "MemoryError"


def main(library: str, name: str, tries: int) -> None:
    shim = ctypes.CDLL(library)
    shim.feed.restype = shim.starved.restype = ctypes.c_long
    shim.starve.argtypes = [ctypes.c_long, ctypes.c_int]
    use_windows(64)
    scenario = scenarios()[name]()
    expected = result_of(scenario.work(scenario.make()))
    for _ in range(2):
        count, came = outcome(shim, scenario, expected, 0, 0)
        assert came == "right", came
    print("count", count, sep="\t", flush=True)
    tries = min(tries, count) or count
    ordinals = [1 + k * (count - 1) // max(tries - 1, 1) for k in range(tries)]
    failures = [(which, then_all) for then_all in (0, 1) for which in ordinals]
    warm = min(len(failures) // 2, 20)
    taken_before = 0
    for k, (which, then_all) in enumerate(failures):
        if k == warm:
            gc.collect()
            taken_before = taken()
        print(which, end="\t", flush=True)
        print(outcome(shim, scenario, expected, which, then_all)[1], flush=True)
    gc.collect()
    if failures:
        print("left", (taken() - taken_before) // (len(failures) - warm), sep="\t", flush=True)


def without_python_memory(name: str, step: int) -> None:
    """Makes every `step`-th allocation of Python itself fail, until some of them are after the end of the call."""
    import _testcapi

    use_windows(64)
    scenario = scenarios()[name]()
    expected = result_of(scenario.work(scenario.make()))
    shim = SimpleNamespace(
        starve=lambda which, then_all: _testcapi.set_nomemory(which - 1, 0 if then_all else which),
        feed=_testcapi.remove_mem_hooks,
        starved=lambda: 1,
    )

    def came_of(which: int, then_all: int) -> str:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(600)
            os.write(write, outcome(shim, scenario, expected, which, then_all)[1].encode())
            os._exit(0)
        os.close(write)
        told = os.read(read, 10_000).decode()
        os.close(read)
        _, status = os.waitpid(child, 0)
        return told if status == 0 else f"died: {status}"

    for then_all in (0, 1):
        which, right = 1, 0
        while right < 3:
            came = came_of(which, then_all)
            print(which, came, sep="\t", flush=True)
            right = right + 1 if came == "right" else 0
            which += step


def limited(most: int) -> None:
    """Decodes a stream whose rows, records and state take some 20 MB, with 1 to `most` MiB of further address space.

    Each limit is tried in its own fork, and has one line.
    """
    t = RelationSpec(16390, "public", "wide", (ColumnSpec("id", 23, key=True), ColumnSpec("v", 25)))
    rows = [encode.encode_insert(16390, [str(k), "x" * 500]) for k in range(30_000)]
    payloads = pa.array(
        stories() * 60
        + [
            encode.encode_begin(1000, 0, 77),
            encode.encode_relation(t),
            *rows,
            encode.encode_commit(1000, 1008, 0),
        ],
        pa.binary(),
    )
    for megabytes in range(1, most + 1):
        child = os.fork()
        if child == 0:
            print(megabytes, under_a_limit(payloads, megabytes << 20), sep="\t", flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(megabytes, f"died: {status}", sep="\t", flush=True)


def under_a_limit(payloads: pa.Array, more: int) -> str:
    decoder = Decoder(Options(on_error="quarantine", batch_rows=5_000))
    # After this call, all one-time objects exist: imported modules, column types.
    decoder.decode(payloads.slice(0, 1_000))
    before = state_of(decoder)
    sizes = Path("/proc/self/statm").read_text(encoding="ascii").split()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(sizes[0]) * resource.getpagesize() + more, hard))
    try:
        out = decoder.decode(payloads)
        came = "right"
    except MemoryError:
        came = "MemoryError"
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    if came == "MemoryError":
        if state_of(decoder) != before:
            came = "another state"
        out = decoder.decode(payloads)
    if sum(each.batch.num_rows for each in out.changes) != limited_rows(payloads):
        came = "wrong"
    return came


def limited_rows(payloads: pa.Array) -> int:
    """The number of rows that another decoder finds after the first thousand messages."""
    decoder = Decoder(Options(on_error="quarantine"))
    decoder.decode(payloads.slice(0, 1_000))
    return sum(each.batch.num_rows for each in decoder.decode(payloads).changes)


def taken() -> int:
    """Bytes allocated with malloc and not freed."""

    class Mallinfo2(ctypes.Structure):
        _fields_ = [(f"f{k}", ctypes.c_size_t) for k in range(10)]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    told = libc.mallinfo2()
    return int(told.f7 + told.f4)


if __name__ == "__main__":
    if sys.argv[1] == "limited":
        limited(int(sys.argv[2]))
    elif sys.argv[1] == "python":
        without_python_memory(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
