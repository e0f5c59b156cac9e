"""Fuzzes input from other programs: Arrow arrays that claim more data than their buffers have, and edited states.

    python fuzz/foreign.py --seconds 60 --seed 1
    python fuzz/foreign.py --cases 1 --seed 4711

Every case must end with a result or with an error that names the problem: a ValueError, for arguments also a TypeError,
for states also a SpillError. It must not kill the process or take long. The cases run in a child process, which prints
the seed of every case before it runs the case.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import pyarrow as pa  # noqa: E402

import pgoutput_fast as pgo  # noqa: E402
from pgoutput_fast import TypeField, UserType, encode, unframe  # noqa: E402
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer  # noqa: E402
from support.guarded import damaged, damaged_batch  # noqa: E402

CASES_AT_A_TIME = 400
CHILD_SECONDS = 120

T = RelationSpec(16384, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
TYPES = [
    UserType(16500, "public", "item", "composite", fields=(TypeField("sku", 25), TypeField("price", 1700))),
    UserType(16501, "public", "_item", "array", of=16500),
    UserType(16502, "public", "part", "composite", fields=(TypeField("items", 16501), TypeField("n", 23))),
]
U = RelationSpec(16400, "public", "u", (ColumnSpec("id", 23, key=True), ColumnSpec("items", 16502)))
EDGES: list[Any] = [
    None, -1, 0, 1, 7, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**400, 1.5, float("nan"), "", "x", "7",
    [], {}, [[]], True, [None], {"x": 1}, "\ud800", "\0",
]  # fmt: skip


def stream() -> tuple[list[bytes], list[bytes]]:
    """(the first part of a stream, which ends with several open transactions; the rest)."""
    writer = Writer()
    first = writer.begin(7, 100, 0)
    first += writer.change(T, "insert", new=["1", "one"]) + writer.change(U, "insert", new=["1", None])
    first += writer.commit(100, 108, 0)
    first += [encode.encode_begin_prepare(200, 208, 0, 9, "gid"), encode.encode_insert(16384, ["4", "four"])]
    first += [encode.encode_prepare(200, 208, 0, 9, "gid")]
    first += [encode.encode_stream_start(8, True), encode.encode_relation(T, xid=8)]
    first += [
        encode.encode_insert(16384, ["2", "two"], xid=8),
        encode.encode_insert(16384, ["3", "x"], xid=12),
    ]
    first += [encode.encode_stream_stop()]
    rest = [encode.encode_stream_abort(8, 12), encode.encode_stream_commit(8, 300, 308, 0)]
    rest += [encode.encode_commit_prepared(400, 408, 0, 9, "gid")]
    return first, rest


FIRST, REST = stream()
TAGGED, STATE = pgo.tag(FIRST)
OUTCOMES = pgo.decode(FIRST + REST).outcomes
FRAMES = [b"w" + (100).to_bytes(8, "big") * 3 + each for each in FIRST]


def state_with_waiting_changes() -> dict[str, Any]:
    decoder = pgo.Decoder(pgo.Options(transactions="committed"), catalog=pgo.Catalog((), TYPES))
    decoder.decode(FIRST)
    document: dict[str, Any] = json.loads(decoder.state.to_json())
    return document


STATE_WITH_WAITING_CHANGES = state_with_waiting_changes()


# ---- arrays ------------------------------------------------------------------------------------------------------


def payloads(rng: random.Random, source: list[bytes] = FIRST) -> Any:
    """Payloads as damaged Arrow data of some type."""
    kind = rng.choice([pa.binary(), pa.large_binary(), pa.binary_view()])
    array = pa.array([b"before", *source], kind)[1:] if rng.random() < 0.5 else pa.array(source, kind)
    array = damaged_view(rng, array) if kind == pa.binary_view() else damaged(rng, array)
    if rng.random() < 0.3:
        array = pa.chunked_array([pa.array(source[:1], array.type), array])
    return array


def damaged_view(rng: random.Random, array: pa.Array) -> pa.Array:
    """Damages views. A view has 16 bytes: length, four bytes of the value, number of a buffer, offset in it."""
    parts = [None if each is None else each.to_pybytes() for each in array.buffers()]
    views = bytearray(parts[1])
    for _ in range(rng.randrange(3)):
        place = rng.randrange(len(views) // 4) * 4
        edge = rng.choice([-1, 1 << 20, (1 << 31) - 1, -(1 << 31), 0, 1, 3, 13])
        views[place : place + 4] = (edge & 0xFFFFFFFF).to_bytes(4, "little")
    parts[1] = bytes(views[: rng.choice([len(views), len(views) // 2])])
    buffers = [None if each is None else pa.py_buffer(each) for each in parts]
    return pa.Array.from_buffers(array.type, len(array), buffers, -1, array.offset)


def integers(rng: random.Random, count: int) -> Any:
    kind = rng.choice([pa.int64(), pa.int64(), pa.int32(), pa.uint64(), pa.string()])
    array = damaged(
        rng, pa.array(range(count), pa.int64()).cast(kind) if kind != pa.string() else pa.array(["1"] * count)
    )
    return pa.chunked_array([array]) if rng.random() < 0.3 else array


def decode_arrays(rng: random.Random) -> None:
    options = pgo.Options(
        transactions=rng.choice(["as_sent", "committed"]), on_error=rng.choice(["raise", "quarantine"])
    )
    given: list[Any] = [payloads(rng), None, None]
    if rng.random() < 0.4:
        given = [pa.array(FIRST, pa.binary()), None, None]
        given[rng.choice([1, 2])] = integers(rng, len(FIRST))
    with pgo.Decoder(options) as decoder:
        decoder.decode(*given)


def stream_batches(rng: random.Random) -> None:
    names = rng.sample(["lsn", "seq"], rng.randrange(3))
    columns = {"payload": pa.array(FIRST, pa.binary())} | {
        name: pa.array(range(len(FIRST)), pa.int64()) for name in names
    }
    batch = damaged_batch(rng, pa.record_batch(columns))
    with pgo.Decoder(pgo.Options(transactions=rng.choice(["as_sent", "committed"]))) as decoder:
        for _ in decoder.stream([batch if rng.random() < 0.5 else pa.Table.from_batches([batch])]):
            pass


def tag_arrays(rng: random.Random) -> None:
    pgo.tag(payloads(rng))


def unframe_arrays(rng: random.Random) -> None:
    unframe(payloads(rng, FRAMES))


def decode_tagged(rng: random.Random) -> None:
    batch = damaged_batch(rng, TAGGED)
    options = pgo.Options(
        transactions=rng.choice(["as_sent", "committed"]), on_error=rng.choice(["raise", "quarantine"])
    )
    pgo.decode_tagged(batch, STATE.catalog, options, outcomes=OUTCOMES)


def decode_outcomes(rng: random.Random) -> None:
    outcomes = damaged_batch(rng, OUTCOMES)
    pgo.decode_tagged(TAGGED, STATE.catalog, pgo.Options(transactions="committed"), outcomes=outcomes)


def decode_file(rng: random.Random) -> None:
    """Decodes a tagged batch from a file with some changed bytes."""
    batch = read(flipped(rng, written(TAGGED)))
    if batch is not None:
        options = pgo.Options(transactions=rng.choice(["as_sent", "committed"]))
        pgo.decode_tagged(batch, STATE.catalog, options, outcomes=OUTCOMES)


def written(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def flipped(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 2, 3, 8])):
        damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0xFF, rng.randrange(256)])
    return bytes(damaged)


def read(data: bytes) -> pa.RecordBatch | None:
    """The batch that Arrow reads from the bytes; None if Arrow itself refuses them."""
    try:
        return pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowException, OSError, ValueError, StopIteration, MemoryError):
        return None


# ---- states ------------------------------------------------------------------------------------------------------


def edited(rng: random.Random, document: Any) -> Any:
    """The document with one to three changed values."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        edit(rng, document)
    return document


def edit(rng: random.Random, document: Any) -> None:
    part = document
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(part[key], dict | list) and part[key] and rng.random() < 0.85:
            part = part[key]
            continue
        break
    way = rng.randrange(6)
    if key == "rows" and isinstance(part[key], str) and way < 5:
        part[key] = base64.b64encode(flipped(rng, base64.b64decode(part[key]))).decode()
    elif way == 0:
        del part[key]
    elif way == 1 and isinstance(part, list):
        part.append(part[key])
    elif way == 2 and type(part[key]) is int:
        part[key] += rng.choice([-1, 1, 1 << 20, -(1 << 20)])
    elif way == 3 and isinstance(part, dict):
        part[rng.choice(["", "x", "7", "-1", str(1 << 70)])] = part[key]
    else:
        part[key] = rng.choice(EDGES)


def use_state(rng: random.Random) -> None:
    state = pgo.StreamState.from_json(json.dumps(edited(rng, STATE_WITH_WAITING_CHANGES)))
    repr(state), state.spill_files
    with pgo.Decoder(pgo.Options(transactions="committed"), state=state) as decoder:
        decoder.decode(REST)
        pgo.StreamState.from_json(decoder.state.to_json())


def use_catalog(rng: random.Random) -> None:
    document = pgo.Catalog(STATE.catalog.relations, TYPES).to_dict()
    catalog = pgo.Catalog.from_json(json.dumps(edited(rng, document)))
    repr(catalog), catalog.fingerprint(), pgo.Catalog.from_json(catalog.to_json())
    pgo.decode_tagged(TAGGED, catalog)


WAYS: list[tuple[Callable[[random.Random], None], int]] = [
    (decode_arrays, 4), (stream_batches, 2), (tag_arrays, 1), (unframe_arrays, 1), (decode_tagged, 5),
    (decode_outcomes, 2), (decode_file, 4), (use_state, 8), (use_catalog, 4),
]  # fmt: skip


def run(seed: int) -> str | None:
    """Run a case. Returns the problem, or None if there is none."""
    rng = random.Random(seed)
    way = rng.choices([way for way, _ in WAYS], [weight for _, weight in WAYS])[0]
    allowed = (ValueError, pgo.SpillError) if way in (use_state, use_catalog) else (ValueError, TypeError)
    try:
        way(rng)
    except allowed:
        pass
    except Exception:
        return f"{way.__name__}:\n{traceback.format_exc()}"
    return None


# ---- processes ---------------------------------------------------------------------------------------------------


def child(seed: int, cases: int) -> int:
    failures = 0
    for each in range(seed, seed + cases):
        print(each, flush=True)
        problem = run(each)
        if problem is not None:
            failures += 1
            print(f"seed {each}, {problem}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def tried(seed: int, cases: int) -> str | None:
    """Run some cases in a child process. Returns the problem, or None if there is none."""
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        __file__,
        "--child",
        "--seed",
        str(seed),
        "--cases",
        str(cases),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as hung:
        code, out, err = None, (hung.stdout or b"").decode(), (hung.stderr or b"").decode()
    if code == 0:
        return None
    what = "took too long" if code is None else f"ended with {code}"
    return f"{err}\nthe process {what} in the case with seed {(out.split() or ['none'])[-1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first case; default: random")
    parser.add_argument("--cases", type=int, default=None, help="run this many cases, without a time limit")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**9)
    if arguments.child:
        return child(seed, arguments.cases)
    print(f"seeds from {seed} on", flush=True)
    begin, first, failures = time.monotonic(), seed, 0
    while failures < 5:
        left = CASES_AT_A_TIME
        if arguments.cases is not None:
            left = min(left, first + arguments.cases - seed)
        if left <= 0 or (arguments.cases is None and time.monotonic() > begin + arguments.seconds):
            break
        problem = tried(seed, left)
        if problem is not None:
            failures += 1
            print(problem, flush=True)
        seed += left
    print(f"{seed - first} cases, {failures} child processes with failures; the next seed is {seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
