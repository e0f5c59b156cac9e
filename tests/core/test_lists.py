"""Arrays, composites and ranges in text: the vector loops split them as the portable code does, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from cells.nested import PAIR, TYPES
from cells.vector_kinds import Rng
from pgoutput_fast import Column, Options
from pgoutput_fast._core.columns.column import convert, use_vectors
from pgoutput_fast.schema.column_types import ColumnType, column_type_of

LEVELS = [level for level in ("neon", "avx2", "avx512") if use_vectors(level) == level]
ROUNDS = 700
TOKENS = [b"{", b"}", b"(", b")", b"[", b"]", b",", b";", b'"', b'""', b"\\", b"\\\\", b'\\"', b" ", b"\t", b"NULL", b"null", b"n",
          b"", b"-", b"0", b"17", b"empty", b"\xc3\xa9", b"\xff", b"{}", b"[2:3]="]  # fmt: skip


@pytest.fixture(autouse=True)
def vectors() -> Iterator[None]:
    if not LEVELS:
        pytest.skip("this processor has no vector loops")
    yield
    use_vectors(LEVELS[-1])


def word(rng: Rng) -> bytes:
    return "".join(rng.choice("abn é") for _ in range(rng.choice([1, 2, 4, 4, 9, 40]))).encode()


def quoted(text: bytes) -> bytes:
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def integers(rng: Rng) -> bytes:
    elements = [
        b"NULL" if rng.random() < 0.1 else b"%d" % rng.randrange(-(10**6), 10**6)
        for _ in range(rng.choice([0, 1, 2, 3, 4, 5, 30]))
    ]
    return b"{" + b",".join(elements) + b"}"


def texts(rng: Rng) -> bytes:
    def element() -> bytes:
        text = word(rng)
        return quoted(text) if b" " in text or text.lower() == b"null" or rng.random() < 0.1 else text

    return b"{" + b",".join(element() for _ in range(rng.choice([0, 1, 2, 3, 4, 12]))) + b"}"


def boxes(rng: Rng) -> bytes:
    return (
        b"{"
        + b";".join(b"(%d,2),(0,0)" % rng.randrange(5, 99) for _ in range(rng.choice([0, 1, 2, 9])))
        + b"}"
    )


def pair(rng: Rng) -> bytes:
    text = word(rng) if rng.random() < 0.8 else b""
    if b" " in text or rng.random() < 0.1:
        text = b'"' + text + b'"'
    number = b"%d" % rng.randrange(10**6) if rng.random() < 0.8 else b""
    return b"(" + number + b"," + text + b"," + (b"%d.%02d" % (rng.randrange(99), rng.randrange(100))) + b")"


def span(bound: Callable[[Rng], bytes]) -> Callable[[Rng], bytes]:
    def make(rng: Rng) -> bytes:
        if rng.random() < 0.1:
            return b"empty"
        lower, upper = (bound(rng) if rng.random() < 0.85 else b"" for _ in range(2))
        return (
            (b"[" if lower and rng.random() < 0.7 else b"(")
            + lower
            + b","
            + upper
            + (b"]" if upper and rng.random() < 0.3 else b")")
        )

    return make


def number(rng: Rng) -> bytes:
    return b"%d" % rng.randrange(-999, 999)


def moment(rng: Rng) -> bytes:
    return b'"2024-0%d-11 10:20:30"' % rng.randrange(1, 9)


def spans(rng: Rng) -> bytes:
    parts = [
        each for each in (span(number)(rng) for _ in range(rng.choice([0, 1, 2, 3, 9]))) if each != b"empty"
    ]
    return b"{" + b",".join(parts) + b"}"


KINDS: dict[str, tuple[int, Callable[[Rng], bytes]]] = {
    "int4[]": (1007, integers),
    "text[]": (1009, texts),
    "box[]": (1020, boxes),
    "composite": (PAIR, pair),
    "int4range": (3904, span(number)),
    "tsrange": (3908, span(moment)),
    "int4multirange": (4451, spans),
}


def seen(array: pa.Array) -> object:
    """Everything that can be seen of an array, to the bit."""
    array.validate(full=True)
    return (
        array.type,
        array.is_valid().to_pylist(),
        [None if b is None else b.to_pybytes() for b in array.buffers()[1:]],
    )


def every_way(kind: ColumnType, cells: list[bytes | None]) -> None:
    use_vectors("portable")
    portable, issues = convert(kind, cells, False)
    for level in LEVELS:
        use_vectors(level)
        for behind in (64, 255):
            quick, quick_issues = convert(kind, cells, False, padding=behind)
            assert quick_issues == issues, level
            assert seen(quick) == seen(portable), level


def mutant(rng: Rng, cell: bytes) -> bytes:
    """The cell with some bytes replaced by, or behind, what could be misread."""
    changed = bytearray(cell)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.choice([0, 0, 1, 2])] = rng.choice(TOKENS)
    return bytes(changed)


@pytest.mark.parametrize("name", KINDS)
def test_usual_texts(name: str) -> None:
    rng = Rng(name)
    oid, make = KINDS[name]
    kind = column_type_of(Column("c", oid), Options(), TYPES)
    for nulls in (0, 0.3):
        for count in (1, 8, 700):
            every_way(kind, [None if rng.random() < nulls else make(rng) for _ in range(count)])


@pytest.mark.parametrize("name", KINDS)
def test_unusual_texts(name: str) -> None:
    rng = Rng(f"{name} mutants")
    oid, make = KINDS[name]
    kind = column_type_of(Column("c", oid), Options(), TYPES)
    for _ in range(ROUNDS):
        cells: list[bytes | None] = [make(rng) for _ in range(rng.randrange(6))]
        cells += [mutant(rng, make(rng)), None, make(rng)]
        every_way(kind, cells)


@pytest.mark.parametrize("length", range(28, 36))
@pytest.mark.parametrize("where", [0, 32, 64])
def test_quotes_and_ends_at_the_edges_of_windows(where: int, length: int) -> None:
    kind = column_type_of(Column("c", 1009), Options())
    for inner in (b"", b",", b"NULL", b'"', b'","', b"a,", b",a", b'"a b"', b'"NULL"', b"n"):
        for behind in (b"", b",x", b',"y z"', b",NULL", b", "):
            text = b"x" * (where + length)
            every_way(
                kind,
                [b"{" + text + b"," + inner + behind + b"}", b'{"' + text + b'",' + inner + behind + b"}"],
            )


@pytest.mark.parametrize("length", range(3, 41))
def test_plain_ranges_of_every_length(length: int) -> None:
    """The comma at every place, and whatever is unusual in the middle and at the ends, also right behind the cell."""
    kind = column_type_of(Column("c", 3906), Options())
    digits = length - 3
    plain: list[bytes | None] = [
        b"(" + b"7" * comma + b"," + b"8" * (digits - comma) + b")" for comma in range(digits + 1)
    ]
    every_way(kind, plain)
    every_way(kind, [b"[" + cell[1:-1] + b"]" for cell in plain if cell is not None])
    middle = b"(" + b"7" * (digits // 2) + b"," + b"8" * (digits - digits // 2) + b")"
    for odd in (b",", b'"', b" ", b"\\", b"(", b"]", b"n", b"\x80", b"\xff"):
        for at in sorted({0, 1, 2, length // 2, length - 2, length - 1}):
            changed = middle[:at] + odd + middle[at + 1 :]
            every_way(kind, [middle, changed, middle])
