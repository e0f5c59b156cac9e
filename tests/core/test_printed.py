"""Types that the server prints: exhaustive where that is possible, and what hostile cells can ask for."""

from __future__ import annotations

import itertools
import random
import struct

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.built_in import AND, DEEP, NOT, OR, phrase, query, word
from pgoutput_fast import Column, Options
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.catalog.builtin_types import is_built_in
from pgoutput_fast.encode import Binary, ColumnSpec, RelationSpec, Writer
from pgoutput_fast.encode.values import to_binary, to_text
from pgoutput_fast.schema.column_types import ColumnType, column_type_of
from reference import bytes as reference
from reference import printed as slow

FIRST_UNREPRESENTABLE = 64


def kind_of(oid: int) -> ColumnType:
    return column_type_of(Column("c", oid, -1, False), Options())


def binary(oid: int, cells: list[bytes]) -> list[str | None]:
    array, issues = convert(kind_of(oid), cells, True)
    array.validate(full=True)
    assert not issues
    values: list[str | None] = array.to_pylist()
    return values


def printed_floats(values: list[float]) -> list[str]:
    """Three to a line, the simplest shape that there is."""
    padded = values + [0.0] * (-len(values) % 3)
    lines = [struct.pack(">3d", *padded[at : at + 3]) for at in range(0, len(padded), 3)]
    texts = itertools.chain.from_iterable(str(text)[1:-1].split(",") for text in binary(628, lines))
    return list(texts)[: len(values)]


def test_every_power_of_two_and_its_neighbours() -> None:
    """A power of two lies closer to its lower neighbour than to its upper one."""
    powers = [2.0**exponent for exponent in range(-1074, 1024)]
    bits = [struct.unpack(">Q", struct.pack(">d", power))[0] for power in powers]
    values = [
        struct.unpack(">d", struct.pack(">Q", each + step))[0]
        for each in bits
        for step in (-1, 0, 1)
        if each + step > 0
    ]
    assert printed_floats(values) == [to_text("float8", value) for value in values]


def test_powers_of_ten_and_other_round_numbers() -> None:
    """Among them those that lie half way between two doubles, such as 1e23: the server excludes these."""
    values = [float(f"{digits}e{power}") for power in range(-330, 309) for digits in (1, 5, 7)]
    values += [float(f"{digits}e{power}") for power in range(16, 26) for digits in range(1, 1000, 2)]
    values += [float(10**k) for k in range(23)] + [1 / 3, 2 / 3, -0.0, 1e-4, 1e-5, 123456789012345.6]
    assert printed_floats(values) == [to_text("float8", value) for value in values]
    assert printed_floats([1e23, 1e22, 9.5e22]) == ["9.999999999999999e+22", "1e+22", "9.5e+22"]


def test_the_smallest_numbers() -> None:
    """Those with fewer digits than others have."""
    values = [
        sign * n * 5e-324 for n in [*range(1, 3000), *(10**k for k in range(4, 15))] for sign in (1, -1)
    ]
    assert printed_floats(values) == [to_text("float8", value) for value in values]


def test_whole_numbers() -> None:
    """Of any length, also with zeros at their end, and with a half, a quarter or hundredths behind them."""
    rng = random.Random(13)
    values = [float(n) for n in range(-1000, 1000)]
    values += [float(rng.getrandbits(bits) * 10**zeros) for bits in range(1, 64) for zeros in (0, 0, 0, 1, 5)]
    values += [
        rng.getrandbits(bits) + part for bits in range(1, 52) for part in (0.5, 0.25, 0.01, 0.07, 0.99)
    ]
    assert printed_floats(values) == [to_text("float8", value) for value in values]


def test_floats_of_random_bits() -> None:
    rng = random.Random(12)
    values = [struct.unpack(">d", rng.randbytes(8))[0] for _ in range(3000)]
    values += [rng.randrange(2**53) * 2.0 ** rng.randint(-60, 30) for _ in range(2000)]
    expected = [to_text("float8", value) for value in values]
    assert printed_floats(values) == expected
    assert [slow.printed_float(value) for value in values[:500]] == expected[:500]


def test_every_pattern_of_zeros_in_an_address() -> None:
    words = [(0, 1, 0xFFFF)] * 2 + [(0, 0xFFFF)] * 3 + [(0, 1, 0xFFFF)] + [(0, 1, 0xABC)] * 2
    cells = [
        b"\3\x80\0\x10"
        + struct.pack(">8H", *(choice if k < 6 else choice * 16 for k, choice in enumerate(each)))
        for each in itertools.product(*words)
    ]
    assert binary(869, cells) == [slow.address_from_binary(cell, is_cidr=False) for cell in cells]
    assert binary(650, cells) == [slow.address_from_binary(cell, is_cidr=True) for cell in cells]


def test_every_byte_as_a_char() -> None:
    values = binary(18, [bytes([code]) for code in range(256)])
    assert values[0] == ""
    assert values[1:128] == [chr(code) for code in range(1, 128)]
    assert values[128:] == [f"\\{code:o}" for code in range(128, 256)]


def lexeme(text: bytes, positions: tuple[int, ...] = ()) -> tuple[bytes, str]:
    """A lexeme in a binary tsvector, and as the server prints it."""
    cell = text + b"\0" + struct.pack(f">H{len(positions)}H", len(positions), *positions)
    quoted = text.decode().replace("\\", "\\\\").replace("'", "''")
    places = ",".join(f"{each & 0x3FFF}{' CBA'[each >> 14].strip()}" for each in positions)
    return cell, f"'{quoted}'" + (f":{places}" if places else "")


def test_lexemes_of_every_length() -> None:
    """Short lexemes are read eight bytes at a time: with what is special at every place, and with every length behind."""
    special = ["'", "\\", "&", "(", "\x01", "\x7f", "é", "𝄞"]
    lexemes = [lexeme(b"a" * length) for length in range(40)]
    for length in range(18):
        for at in range(length + 1):
            text = "x" * at + special[(at + length) % len(special)] + "y" * (length - at)
            lexemes.append(
                lexeme(text.encode(), ((at, 9, 10, 99, 100, 16383)[length % 6] | length % 4 << 14,))
            )
    lexemes.append(lexeme(b"many", tuple(range(0, 0x10000, 257))))
    rng = random.Random(8)
    values = [[each] for each in lexemes] + [rng.choices(lexemes, k=rng.randrange(12)) for _ in range(2000)]
    cells = [struct.pack(">i", len(each)) + b"".join(cell for cell, _ in each) for each in values]
    assert binary(3614, cells) == [" ".join(text for _, text in each) for each in values]
    for bad in (b"\xff", b"a\xc3", b"aaaaaaa\xc3", b"\xe9aaaaaaaaaaaaaaaa"):
        cell = struct.pack(">i", 2) + bad + b"\0\0\0" + b"behind it\0\0\0"
        assert len(convert(kind_of(3614), [cell], True)[1]) == 1
    for length in range(len(cells[-1])):
        assert convert(kind_of(3614), [cells[-1][:length]], True)[1]


def test_integers_of_every_length() -> None:
    values = [0, 2**64 - 1] + [10**k + step for k in range(20) for step in (-1, 0, 1)]
    values += [random.Random(k).randrange(2**k) for k in range(1, 65) for _ in range(3)]
    assert binary(5069, [struct.pack(">Q", value) for value in values]) == [str(value) for value in values]
    small = [value for value in values if value < 2**32]
    assert binary(27, [struct.pack(">IH", value, value & 0xFFFF) for value in small]) == [
        f"({value},{value & 0xFFFF})" for value in small
    ]


def test_every_tree_of_three_operators() -> None:
    """Priorities, parentheses and the phrase operator's right operand."""
    leaves = [word(b"a"), word(b"b", 8, 1)]
    trees: list[list[bytes]] = [[leaf] for leaf in leaves]
    for _ in range(3):
        smaller = trees[:40]
        trees = [[leaf] for leaf in leaves]
        trees += [[NOT, *tree] for tree in smaller]
        for operator in (AND, OR, phrase(1), phrase(3)):
            trees += [
                [operator, *right, *left] for right, left in itertools.product(smaller[:20], smaller[:20])
            ]
    cells = [query(*tree) for tree in trees]
    assert len(cells) > 1000
    texts = binary(3615, cells)
    assert texts == [slow.tsquery_from_binary(cell) for cell in cells]
    # What was printed is read as a tree that prints the same.
    assert binary(3615, [to_binary("tsquery", str(text)) for text in texts]) == texts


def test_deep_trees_need_no_stack() -> None:
    for operator in (NOT, AND, OR, phrase(2)):
        operands = 0 if operator == NOT else 200_000
        (text,) = binary(3615, [query(*[operator] * 200_000, *[word(b"x")] * (operands + 1))])
        assert text is not None
        assert text.count("'x'") == operands + 1
    assert binary(3615, [DEEP]) == ["!" * 50_000 + "'a'"]


@pytest.mark.parametrize("oid", [1562, 602, 604, 3614, 3615, 2970, 22, 30])
def test_a_count_beyond_the_cell_is_refused_before_anything_is_made(oid: int) -> None:
    for count in (2**31 - 1, 2**31, 2**32 - 1, 1_000_000):
        for cell in (
            struct.pack(">I", count),
            b"\0" + struct.pack(">I", count),
            struct.pack(">I", count) * 6,
        ):
            _, issues = convert(kind_of(oid), [cell], True)
            assert [reason < FIRST_UNREPRESENTABLE for _, reason, _ in issues] == [True]


def test_values_that_would_overflow_the_offsets_do_not_fit() -> None:
    """A varbit prints eightfold: of 400 MB it cannot, and no memory is allocated for it."""
    cell = struct.pack(">i", 2**31 - 8) + bytes(2**28 - 1)
    array, issues = convert(kind_of(1562), [None, cell, b"\0\0\0\1\x80"], True)
    assert array.to_pylist() == [None, None, "1"]
    assert [(row, reason >= FIRST_UNREPRESENTABLE) for row, reason, _ in issues] == [(1, True)]


def test_intervals_of_all_signs() -> None:
    """Each field's sign, and whether it is there at all, decides how the next one is printed."""
    months, days, micros = (
        (0, 1, -1, 12, -12, 13, -13),
        (0, 1, -1, 5),
        (0, 1, -1, 3_600_000_000, -86_400_000_001),
    )
    values = [(m, d, us * 1000) for m, d, us in itertools.product(months, days, micros)]
    texts = [to_text("interval", value).encode() for value in values]
    from_text, issues = convert(kind_of(1186), texts, False)
    from_binary, more = convert(kind_of(1186), [to_binary("interval", value) for value in values], True)
    assert issues == more == []
    assert [tuple(value) for value in from_text.to_pylist()] == values
    assert from_text.equals(from_binary)
    assert [slow.interval_from_text(text) for text in texts] == values
    assert from_text.type == pa.month_day_nano_interval()


def test_interval_text_is_read_strictly() -> None:
    """One character more, less or other: what is still taken prints as itself."""
    rng = random.Random(3)
    for _ in range(20_000):
        value = (
            rng.randint(-30, 30),
            rng.randint(-3, 3),
            rng.choice([0, rng.randint(-(10**9), 10**9) * 1000]),
        )
        text = bytearray(to_text("interval", value).encode())
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 1)] = rng.choice(
            [b"", b" ", b"-", b"+", b"0", b"1", b"s", b":", b".", b"9"]
        )
        array, issues = convert(kind_of(1186), [bytes(text)], False)
        try:
            expected = slow.interval_from_text(bytes(text))
        except reference.MalformedError:
            assert issues, bytes(text)
            continue
        assert not issues, bytes(text)
        assert tuple(array[0].as_py()) == expected


@pytest.mark.parametrize(
    ("oid", "text", "setting"),
    [
        (790, "1.234,50 €", "lc_monetary=C"),
        (791, "{$1.50,1.50}", "lc_monetary=C"),
        (1186, "P1DT2H", "IntervalStyle=postgres"),
        (1187, '{"@ 1 day"}', "IntervalStyle=postgres"),
    ],
)
def test_text_in_another_style_is_refused_with_a_hint(oid: int, text: str, setting: str) -> None:
    writer = Writer()
    spec = RelationSpec(1, "public", "t", (ColumnSpec("v", oid),))
    wal = writer.begin(1, 1, 1) + writer.change(spec, "insert", new=[text]) + writer.commit(1, 2, 1)
    with pytest.raises(pgo.DecodeError, match=setting) as caught:
        pgo.decode(wal)
    assert text not in str(caught.value)


def test_printed_types_as_string_views() -> None:
    writer = Writer()
    spec = RelationSpec(1, "public", "t", (ColumnSpec("v", 869), ColumnSpec("w", 869)))
    address = to_binary("inet", "2001:db8:1:2:3:4:5:6")
    wal = (
        writer.begin(1, 1, 1)
        + writer.change(spec, "insert", new=[Binary(address), "10.0.0.1"])
        + writer.commit(1, 2, 1)
    )
    table = pgo.decode(wal, options=pgo.Options(strings="string_view")).table("public.t")
    assert table.schema.field("v").type == pa.string_view()
    assert table.select(["v", "w"]).to_pylist() == [{"v": "2001:db8:1:2:3:4:5:6", "w": "10.0.0.1"}]


def test_intervals_go_to_numpy() -> None:
    writer = Writer()
    spec = RelationSpec(1, "public", "t", (ColumnSpec("v", 1186),))
    wal = (
        writer.begin(1, 1, 1)
        + writer.change(spec, "insert", new=["1 mon 2 days 00:00:03"])
        + writer.commit(1, 2, 1)
    )
    values = pgo.decode(wal).changes[0].to_numpy()["v"]
    assert values.shape == (1,)
    assert values.dtype == object


def test_every_built_in_type_has_a_converter_in_both_formats() -> None:
    known = [oid for oid in range(10_000) if is_built_in(oid)]
    assert len(known) > 120
    for oid in known:
        for binary_format in (False, True):
            array, issues = convert(kind_of(oid), [None], binary_format)
            assert (array.type, array.to_pylist(), issues) == (kind_of(oid).arrow, [None], [])
