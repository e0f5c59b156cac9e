"""The vector loops take what is usual, and never change what the portable converters make of anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cells.vector_kinds import KINDS, Rng
from pgoutput_fast import Column, Options, _core
from pgoutput_fast._core.columns.column import convert, refused_quickly, use_vectors
from pgoutput_fast.schema.column_types import ColumnType, column_type_of

CELLS = 300  # more than two chunks
MUTANTS = 400


def typed(name: str) -> tuple[ColumnType, bool]:
    oid, typmod, binary, _ = KINDS[name]
    return column_type_of(Column("c", oid, typmod), Options()), binary


LEVELS = [level for level in ("neon", "avx2", "avx512") if use_vectors(level) == level]


@pytest.fixture(autouse=True)
def vectors() -> Iterator[None]:
    if not LEVELS:
        pytest.skip("this processor has no vector loops")
    yield
    use_vectors(LEVELS[-1])


def exact(array: pa.Array) -> tuple[Any, ...]:
    """Everything that can be seen of an array, to the bit."""
    array.validate(full=True)
    buffers = [None if b is None else b.to_pybytes() for b in array.buffers()[1:]]
    return array.type, array.is_valid().to_pylist(), buffers


def every_way(kind: ColumnType, cells: list[bytes | None], binary: bool) -> None:
    use_vectors("portable")
    portable, issues = convert(kind, cells, binary)
    for level in LEVELS:
        use_vectors(level)
        for behind in (64, 255, 256):
            quick, quick_issues = convert(kind, cells, binary, padding=behind)
            assert quick_issues == issues, level
            assert exact(quick) == exact(portable), level


@pytest.mark.parametrize(
    ("variable", "value", "highest"),
    [
        ("PGOUTPUT_FAST_VECTORS", "avx2", "avx2"),
        ("PGOUTPUT_FAST_VECTORS", "portable", "portable"),
        ("PGOUTPUT_FAST_VECTORS", "avx1024", "portable"),
        ("PGOUTPUT_FAST_PORTABLE", "1", "portable"),
        ("PGOUTPUT_FAST_VECTORS", "", LEVELS[-1] if LEVELS else "portable"),
    ],
)
@pytest.mark.unsanitized
def test_the_environment_says_how_far_to_go(variable: str, value: str, highest: str) -> None:
    look = "from pgoutput_fast._core.columns.column import use_vectors; print(use_vectors())"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PGOUTPUT_FAST_")}
    run = subprocess.run(
        [sys.executable, "-c", look],
        env={**inherited, variable: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == highest


def test_there_is_no_other_level() -> None:
    with pytest.raises(KeyError, match="avx1024"):
        use_vectors("avx1024")
    assert use_vectors() == LEVELS[-1]


def test_one_extension_has_the_vector_loops_and_their_level() -> None:
    """`use_vectors` sets one variable: so nothing may be left over, whether it was imported before or is afterwards.

    What has a level asks the environment for it by this name.
    """
    extensions = {
        path.name.split(".")[0]: path.read_bytes() for path in Path(_core.__path__[0]).rglob("*.so")
    }
    assert {"column", "rows", "table_rows", "bench"} < extensions.keys()
    assert [name for name, code in extensions.items() if b"PGOUTPUT_FAST_VECTORS" in code] == ["column"]


@pytest.mark.parametrize("nulls", [False, True], ids=["all there", "some missing"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KINDS)
def test_usual_cells_are_taken(name: str, nulls: bool, level: str) -> None:
    rng = Rng(name)
    kind, binary = typed(name)
    cells = [None if nulls and rng.random() < 0.3 else KINDS[name][3](rng) for _ in range(CELLS)]
    use_vectors(level)
    assert not refused_quickly(kind, cells, binary)
    every_way(kind, cells, binary)


@pytest.mark.parametrize("name", KINDS)
def test_so_few_cells_that_no_step_is_full(name: str) -> None:
    rng = Rng(f"{name} few")
    kind, binary = typed(name)
    for count in (*range(1, 18), 129, 130, 131, 135):
        every_way(kind, [KINDS[name][3](rng) for _ in range(count)], binary)


def mutant(rng: Rng, cell: bytes) -> bytes:
    """The cell with a byte or two changed, inserted, doubled or lost."""
    changed = bytearray(cell)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(changed) + 1)
        strange = rng.choice(b"0123456789-+.: eEBCnaftx\\/;@`gGF\x00\x01\x7f\x80\xc3\xff")
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = strange
            case 1 if at < len(changed):
                del changed[at]
            case 2 if at < len(changed):
                changed.insert(at, changed[at])
            case _:
                changed.insert(at, strange)
    return bytes(changed)


@pytest.mark.parametrize("name", KINDS)
def test_whatever_is_unusual_is_as_without_them(name: str) -> None:
    rng = Rng(f"{name} mutants")
    kind, binary = typed(name)
    cells: list[bytes | None] = [KINDS[name][3](rng) for _ in range(20)]
    for _ in range(MUTANTS):
        at = rng.randrange(len(cells))
        usual = cells[at]
        assert usual is not None
        cells[at] = mutant(rng, usual)
        every_way(kind, cells, binary)
        cells[at] = usual


EDGES = {
    "int2": [b"32767", b"-32768", b"32768", b"-32769", b"-0", b"00", b"0", b"-", b"", b"1-2", b"9" * 17, b"9" * 40],
    "int4": [b"2147483647", b"-2147483648", b"2147483648", b"-2147483649", b"99999999999999999"],
    "int8": [
        *(b"%d" % (sign * 2**63 + k) for sign in (1, -1) for k in (-1, 0, 1)),
        b"27670116110564327423",  # 2^63 - 1 and 2^64
        b"18446744073709551616",
        b"-9999999999999999999",
        b"0000000000000000001",
    ],
    "oid": [b"4294967295", b"4294967296", b"-1", b"-0"],
    "date": [b"2024-02-29", b"2023-02-29", b"1900-02-29", b"2000-02-29", b"2024-00-10", b"2024-13-01", b"2024-01-00",
             b"2024-01-65", b"2024-17-01", b"0000-01-01", b"9999-12-31", b"2024-04-31", b"infinity", b"0044-03-15 BC"],
    "timestamptz": [b"2024-01-01 24:00:00+00", b"2024-01-01 23:59:60+00", b"2024-01-01 23:60:00+00",
                    b"2024-01-01 25:00:00+00", b"2024-01-01 00:00:00.+00", b"2024-01-01 00:00:00.1234567+00",
                    b"2024-01-01 00:00:00-00", b"2024-01-01 00:00:00+01", b"-infinity", b"2024-01-01 00:00:00"],
    "numeric": [b"-0.00", b"0.00", b"00.00", b".00", b"1.", b"-", b"--1", b"1-", b"0", b"-0", b"01", b"-01.5", b"1.5.0", b"NaN",
                b"Infinity", b"-Infinity", b"9" * 64, b"9" * 65, b"0." + b"0" * 62, b"", b"1e5", b"9" * 200],
    "time": [b"24:00:00", b"23:59:59.999999", b"23:59:60", b"25:00:00", b"12:60:00", b"00:00:00.", b"00:00:00.1234567", b"00:00",
             b"29:00:00", b"00:00:00.5", b"00.00.00", b""],
    "numeric(12,2)": [b"-0.00", b"0.00", b"00.00", b".00", b"1.0", b"1.000", b"9999999999.99", b"10000000000.00",
                      b"-9999999999.99", b"NaN", b"1", b"-", b"-.50", b"1.5.0"],
    "float8": [b"0.1", b"-0.0", b"0", b"00.5", b"1.", b".5", b"1.7976931348623157e+308", b"4.9406564584124654e-324",
               b"0.00012345678901234567", b"9007199254740993.0", b"123456789012345678.5", b"1e-05", b"NaN", b"-Infinity",
               b"9999999999999999999.9", b"0.30000000000000004", b"100.000000000000014210854715202", b"5", b"-0", b"0.0",
               b"01", b"-", b"-.5", b"1234567890123456", b"12345678901234567", b"1234567890123456.5", b"1..5", b"1.5.",
               b"0.0000000000000000001", b"0.00000000000000000001", b"9007199254740993", b"16777217", b"16777217.0",
               b"0.00000000000000000000000000000000000000000000000000000000000000000001", b"1" + b"0" * 63 + b".5"],
    "interval": [b"00:00:00", b"-00:00:00", b"1 day 00:00:00", b"-00:00:01", b"1 year", b"1 years", b"2 year", b"-1 years",
                 b"-1 year", b"1 mon", b"12 mons", b"11 mons", b"-11 mons", b"1 year -1 mons", b"-1 years -1 mons",
                 b"-1 years +1 day", b"-1 days 01:00:00", b"-1 days +01:00:00", b"-1 days -01:00:00", b"1 day +01:00:00",
                 b"0 days", b"01 days", b"1 days", b"1 day  01:00:00", b"1 day01:00:00", b" 1 day", b"1 day ", b"1 mon 1 year",
                 b"1 day 2 days", b"1:00:00", b"01:00", b"01:00:00.", b"01:00:00.10", b"01:00:00.1234567", b"01:60:00",
                 b"012:00:00", b"123:00:00", b"999999:59:59.999999", b"1000000:00:00", b"2562047:47:16.854775",
                 b"2562047:47:16.854776", b"9999999 years", b"99999999 years", b"178956970 years 7 mons", b"2147483647 days",
                 b"2147483648 days", b"infinity", b"-infinity", b"", b"-", b"1", b"day", b" day", b"days", b":00:00", b"P1Y",
                 b"1 year 2 mons 3 days 04:05:06.789", b"1 years 2 mons 3 days 04:05:06", b"1 yeae", b"1 moo", b"1 ddy",
                 b"-1 years -2 mons +3 days -04:05:06", b"1 year 2 mons -3 days +04:05:06", b"-1 mons +04:05:06", b"1 mon -1 day",
                 b"-1 years 2 mons", b"-1 years +2 mons", b"-1 mons 1 day", b"-1 days +00:00:00", b"-1 days -00:00:00.5", b"+1 day",
                 b"1 day +1 year", b"--1 days", b"-+1 days", b"+-1 days", b"-1 days ++01:00:00", b"-1 days +-01:00:00", b"-0 days",
                 b"-1 days+01:00:00", b"- 1 days", b"-1- days", b"1 mon - days", b"-9999999 days +999999:59:59.999999",
                 b"-1 years +1 mon 1 day", b"1 mon -01:00:00", b"-1 mons -01:00:00", b"1 mon +01:00:00", b"-12345678 days +1:00:00",
                 b"178956970 years 11 mons 2147483647 days 2562047788:00:54.775807",
                 b"1 year                                             1 mon"],
    "binary numeric": [
        bytes.fromhex(each) for each in (
            "0000000000000000", "0000000000000005", "0000000040000002", "0001000040000000" "0001", "00000000c0000000",
            "00000000d0000000", "00000000f0000000", "0000000080000000", "0001000000000000" "2710", "0001000000000000" "270f",
            "0001000000003fff" "0001", "0001000000004000" "0001", "0001ffff00000002" "0063", "0001ffff40000002" "0063",
            "0001fffb00000010" "270f", "0001fff900000010" "270f", "0001000600000004" "000b", "0001000700000004" "000b",
            "0001000800000004" "000b", "00017fff00000000" "0001", "0001800000000000" "0001", "0007000300000010" + "04d2" * 7,
            "0008000300000010" + "04d2" * 8, "000100000000001c" "0001", "000100000000001d" "0001", "00010000", "",
            "0001000000000000", "0001000000000000" "0001ff", "ffff000000000000" "0001",
        )
    ],
    "money": [b"$0.00", b"-$0.00", b"-$0.01", b"$.50", b"$00.50", b"$1234.00", b"$1,234.00", b"$,234.00", b"$12,34.00", b"$1,23.00",
              b"$01,234.00", b"$9,999,999,999.99", b"$10,000,000,000.00", b"$92,233,720,368,547,758.07", b"$1.5", b"$1.505", b"$1",
              b"-$92,233,720,368,547,758.08", b"$92,233,720,368,547,758.08", b"$", b"-", b"-$", b"", b"1.50", b"$-1.50", b"$1,234,56.00",
              b"$1,,234.00", b"$1.234.00", b"\xc2\xa31.00"],
    "tid": [b"(0,0)", b"(0,1)", b"(00,1)", b"(0,01)", b"(4294967295,65535)", b"(4294967296,1)", b"(1,65536)", b"(999999999,9999)",
            b"(1000000000,1)", b"(1,10000)", b"(,1)", b"(1,)", b"(1,1", b"1,1)", b"(1,1))", b"((1,1)", b"(1,1,1)", b"(1 1)", b"(11)", b"()",
            b"(,)", b"", b"(", b"(-1,1)", b"(1,1) ", b",1,1)", b"(1,1,"],
    "inet": [b"0.0.0.0", b"255.255.255.255/32", b"256.0.0.0", b"0.0.0.256", b"1.2.3.4/33", b"1.2.3.4/39", b"1.2.3.4/40", b"1.2.3.4/0",
             b"1.2.3.4/00", b"1.2.3.4/01", b"1.2.3.4/100", b"1.2.3.4/", b"/1.2.3.4", b"1.2.3/4", b"1.2.3/4.5", b"1.2.3.4.5", b"1.2.3",
             b"01.2.3.4", b"1.00.3.4", b"1..3.4", b".1.2.3.4", b"1.2.3.4.", b"1234.2.3.4", b"1.2.3.1234", b"300.1.1.1", b"260.1.1.1",
             b"1.2.3.4/1/2", b"1.2.3.4//2", b"1.2.3.4 ", b"1.2.3.x", b"1.2.3.\x80", b"::1", b"::ffff:1.2.3.4", b"", b"1.2.3.4/-1"],
    "cidr": [b"0.0.0.0", b"255.255.255.255/32", b"256.0.0.0", b"0.0.0.256", b"1.2.3.4/33", b"1.2.3.4/39", b"1.2.3.4/40", b"1.2.3.4/0",
             b"1.2.3.4/00", b"1.2.3.4/01", b"1.2.3.4/100", b"1.2.3.4/", b"/1.2.3.4", b"1.2.3/4", b"1.2.3/4.5", b"1.2.3.4.5", b"1.2.3",
             b"01.2.3.4", b"1.00.3.4", b"1..3.4", b".1.2.3.4", b"1.2.3.4.", b"1234.2.3.4", b"1.2.3.1234", b"300.1.1.1", b"260.1.1.1",
             b"1.2.3.4/1/2", b"1.2.3.4//2", b"1.2.3.4 ", b"1.2.3.x", b"1.2.3.\x80", b"::1", b"::ffff:1.2.3.4", b"", b"1.2.3.4/-1"],
    "bytea": [b"\\x", b"\\x0", b"\\xGG", b"\\xAB", b"x00", b"", b"\\", b"\\x" + b"0" * 64, b"\\x" + b"0" * 63],
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    rng = Rng(name)
    kind, binary = typed(name)
    usual: list[bytes | None] = [KINDS[name][3](rng) for _ in range(9)]
    for edge in EDGES[name]:
        every_way(kind, [*usual, edge, None, *usual], binary)


def test_every_byte_in_the_place_of_a_hexadecimal_digit() -> None:
    """Both digits of a byte, in the first and the last vector, and at their edges."""
    kind, binary = typed("bytea")
    for digits in (2, 32, 34, 64, 66, 96):
        for at in sorted({0, 1, 30, 31, 32, 33, 62, 63, 64, 65, digits - 2, digits - 1}):
            if at >= digits:
                continue
            text = b"0f" * (digits // 2)
            cells: list[bytes | None] = [
                b"\\x" + text[:at] + bytes([byte]) + text[at + 1 :] for byte in range(256)
            ]
            for first in range(0, 256, 64):
                every_way(kind, cells[first : first + 64], binary)
            every_way(
                kind,
                [cell for cell in cells if cell is not None and cell[2 + at] in b"0123456789abcdef"],
                binary,
            )


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("level", ["portable", *LEVELS])
def test_what_utf8_is(level: str) -> None:
    """Every first byte with every second one, with none to two behind them, and at the edges of 64 bytes."""
    use_vectors(level)
    kind, _ = typed("short text")
    rng = Rng("utf8")
    for first in (0x7F, 0x80, *range(0xBF, 0x100)):
        for second in range(0x100):
            start = b"a" * rng.choice([0, 1, 60, 61, 62, 63, 64])
            text = start + bytes([first, second]) + rng.choice([b"", b"\x80", b"\xbf\x80", b"\x80a"])
            text += b"b" * rng.choice([0, 0, 1, 70])
            assert bool(convert(kind, [text], False)[1]) != is_utf8(text), text


@pytest.mark.parametrize("level", ["portable", *LEVELS])
def test_no_value_begins_inside_a_character(level: str) -> None:
    use_vectors(level)
    kind, _ = typed("short text")
    for first, second in (
        (b"a\xc3", b"\xa9b"),
        (b"\xf0\x9d", b"\x84\x9e"),
        (b"\xe2\x82", b"\xac" + b"x" * 70),
    ):
        for between in ([], [None], [b""]):
            cells = [b"x", first, *between, second, b""]
            values, issues = convert(kind, cells, False)
            assert [row for row, _, _ in issues] == [1, 2 + len(between)]
            assert values.null_count == 2 + between.count(None)


@pytest.mark.parametrize("level", ["portable", *LEVELS])
def test_floats_are_the_nearest(level: str) -> None:
    use_vectors(level)
    rng = Rng("nearest")
    texts = [
        f"{rng.randrange(10 ** rng.randrange(1, 9))}.{rng.randrange(10 ** rng.randrange(1, 19))}"
        for _ in range(20000)
    ]
    for _ in range(20000):
        # In the middle between two floats, exactly or nearly so, with nineteen digits at most.
        middle = Decimal(rng.randrange(2**52, 2**53) * 2 + 1) * Decimal(2) ** rng.randrange(-3, 10)
        for near in (middle, middle + 1, middle - Decimal("0.001")):
            texts.append(f"{near:.3f}"[:20].rstrip("0"))
    texts = [t + "0" if t.endswith(".") else t for t in texts]
    for kind in ("float8", "float4"):
        values, issues = convert(typed(kind)[0], [t.encode() for t in texts], False)
        assert not issues
        if kind == "float8":
            assert values.to_pylist() == [float(t) for t in texts]
        else:
            use_vectors("portable")
            assert values.equals(convert(typed(kind)[0], [t.encode() for t in texts], False)[0])
