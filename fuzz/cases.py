"""The fuzzer's cases: random and captured streams with damage. The seed of a case determines the whole case."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.streams import RandomChoices, Stream, damage, make_stream

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
CHANGES = b"IUDTM"  # a damaged change is rejected alone, so one stream can have many
EDGES = [
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0\0\0",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
]


@dataclass
class Case:
    """A stream, the ends of calls, the decoder's options, and the number of mutated messages."""

    stream: Stream
    cuts: list[int]
    options: dict[str, Any] = field(default_factory=dict)
    mutated: int = 0


def read_fixture(path: Path) -> list[tuple[int, bytes]]:
    """Returns (position, payload) of every line. A line that begins with # is a comment."""
    lines = (
        line.split() for line in path.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")
    )
    return [(int(lsn, 16), bytes.fromhex("".join(data))) for lsn, *data in lines]


def captured() -> list[list[tuple[int, bytes]]]:
    return [read_fixture(path) for path in sorted(FIXTURES.glob("*.txt"))]


def make_case(seed: int, sources: list[list[tuple[int, bytes]]]) -> Case:
    if seed % 4 == 0:
        return generated_case(seed)
    if seed % 4 == 1:
        return raising_case(random.Random(seed), sources)
    return quarantined_case(random.Random(seed), sources)


def generated_case(seed: int) -> Case:
    """A small stream from the encoder, with values that no server sends, and with messages in a wrong order."""
    choices = RandomChoices(seed)
    stream = make_stream(choices, 1 + choices.below(14), malformed=choices.below(3) == 0)
    mutated = 0
    if choices.below(3):
        mutated = 1 + choices.below(4)
        stream = damage(choices, stream, mutated)
    cuts = sorted({choices.below(len(stream.payloads) + 1) for _ in range(choices.below(6))})
    options = {
        "transactions": ("as_sent", "committed")[choices.below(2)],
        "on_error": ("quarantine", "quarantine", "raise")[choices.below(3)],
        "unrepresentable": ("null", "null", "null", "raise")[choices.below(4)],
    }
    return Case(stream, cuts, options, mutated)


def raising_case(rng: random.Random, sources: list[list[tuple[int, bytes]]]) -> Case:
    """A captured stream with one to four mutated messages. Decoding may raise."""
    source = rng.choice(sources)
    payloads = [data for _, data in source]
    places = rng.sample(range(len(payloads)), rng.randint(1, min(4, len(payloads))))
    for at in places:
        payloads[at] = mutate(rng, payloads[at], payloads)
    options = {
        "transactions": rng.choice(["as_sent", "committed"]),
        "on_error": rng.choice(["raise", "raise", "quarantine"]),
        "unrepresentable": rng.choice(["null", "raise"]),
    }
    stream = Stream(payloads, [lsn for lsn, _ in source], set())
    return Case(stream, some_cuts(rng, len(payloads)), options, len(places))


def quarantined_case(rng: random.Random, sources: list[list[tuple[int, bytes]]]) -> Case:
    """Captured and generated streams one after another. Mutations of a change follow it.

    The captured streams are from servers. The generated streams have every type that the encoder can write.
    """
    boundaries = rng.choice([0.0, 0.003, 0.003, 0.03])
    variants = rng.choice([3, 10, 30])
    payloads: list[bytes] = []
    lsns: list[int] = []
    sessions: set[int] = set()
    mutated = 0
    while len(payloads) < 1500:
        source = rng.choice(sources) if rng.random() < 0.5 else generated(rng)
        others = [data for _, data in source] or [b""]
        if rng.random() < 0.5:
            sessions.add(len(payloads))
        for lsn, data in source:
            change = data[:1] in (b"I", b"U", b"D", b"T", b"M")
            damaged = not change and rng.random() < boundaries
            more = [mutate(rng, data, others, keep_tag=True) for _ in range(variants if change else damaged)]
            # A damaged change is added to the valid one. A damaged boundary replaces the valid one.
            batch = [data, *more] if change else more or [data]
            payloads += batch
            lsns += [lsn] * len(batch)
            mutated += len(more)
    options = {
        "transactions": rng.choice(["as_sent", "committed"]),
        "on_error": "quarantine",
        "unrepresentable": "null",
    }
    cuts = some_cuts(rng, len(payloads)) if rng.random() < 0.3 else []
    return Case(Stream(payloads, lsns, sessions), cuts, options, mutated)


def generated(rng: random.Random) -> list[tuple[int, bytes]]:
    stream = make_stream(RandomChoices(rng.randrange(1 << 30)), 10)
    return list(zip(stream.lsns, stream.payloads, strict=True))


def some_cuts(rng: random.Random, count: int) -> list[int]:
    return sorted({rng.randrange(count + 1) for _ in range(rng.randrange(6))})


def mutate(rng: random.Random, data: bytes, others: list[bytes], *, keep_tag: bool = False) -> bytes:
    """The message, damaged one to three times. With `keep_tag`, its kind nearly always stays the same."""
    first = 1 if keep_tag and rng.random() < 0.999 else 0
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = damaged_once(rng, data, others, min(first, len(data)))
    return data


def damaged_once(rng: random.Random, data: bytes, others: list[bytes], first: int) -> bytes:
    way = rng.randrange(12)
    at = rng.randint(first, len(data))
    if way < 4 and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if way == 4 and at < len(data):
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if way == 5:
        return data[:at]
    if way == 6:
        return data[:at] + rng.randbytes(rng.randint(1, 5)) + data[at:]
    if way == 7:
        return data[:at] + data[at + rng.randint(1, 8) :]
    if way == 8:
        edge = rng.choice(EDGES)
        return data[:at] + edge + data[at + len(edge) :]
    if way == 9:  # changes the kind of a cell, if this byte is one
        return data[:at] + bytes([rng.choice(b"nutbNKO")]) + data[at + 1 :]
    if way == 10:
        return data[:at] + rng.choice(others)[at:]
    return data[:at] + bytes([rng.choice(b'0123456789-+.:,{}" eENaIinfy\\')]) + data[at + 1 :]
