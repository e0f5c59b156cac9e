"""Nested values: what a server says it sends is what is written, and what is written is what is decoded."""

from __future__ import annotations

import doctest
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pgoutput_fast.encode.nested
from pgoutput_fast import Column, Options, TypeField, UserType, UserTypes
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast.encode.nested import (
    EMPTY_RANGE_BINARY,
    EMPTY_RANGE_TEXT,
    list_to_binary,
    multirange_to_binary,
    multirange_to_text,
    point_to_binary,
    point_to_text,
    range_to_binary,
    range_to_text,
    record_to_binary,
    record_to_text,
)
from pgoutput_fast.encode.values import array_to_text, to_binary, to_text
from pgoutput_fast.schema.column_types import column_type_of
from support import pg
from support.forms import and_slow

ODD = ["", " ", "a b", '"', "\\", "a,b", "(x)", "[x]", "{x}", "NULL", "é\n", '""', '\\"']


def test_examples_in_the_documentation() -> None:
    assert doctest.testmod(pgoutput_fast.encode.nested).failed == 0


def test_servers_write_the_same(database: pg.Database) -> None:
    with database.session() as connection, connection.cursor() as cursor:
        cursor.execute('CREATE TYPE texts AS RANGE (subtype = text, collation = "C")')
        cursor.execute("CREATE TYPE texts2 AS (x int, a text, b text)")
        cursor.execute("SELECT 'texts2'::regtype::oid::int8")
        ((record_oid,),) = cursor.fetchall()

        def server(expression: str, kind: str, *arguments: Any) -> tuple[str, bytes]:
            # A function that sends exists for every type, and its name follows from the kind of type.
            cursor.execute(f"SELECT ({expression})::text, {kind}_send({expression})", arguments * 2)
            ((text, binary),) = cursor.fetchall()
            return text, bytes(binary)

        for a in ODD:
            for b, brackets in ((None, "[]"), (None, "()"), (f"{a}z", "(]"), (f"{a}z", "[)")):
                assert server(f"texts(%s, %s, '{brackets}')", "range", a, b) == (
                    range_to_text(a, b, brackets),
                    range_to_binary(a.encode(), None if b is None else b.encode(), brackets),
                )
            fields = [(23, to_binary("int4", 5)), (25, a.encode()), (25, None)]
            record = record_to_text(["5", a, None])
            assert server("ROW(5, %s, NULL)::texts2", "record", a) == (record, record_to_binary(fields))
            assert server("ARRAY[ROW(5, %s, NULL)::texts2, NULL]", "array", a) == (
                array_to_text([record, None]),
                list_to_binary(record_oid, [record_to_binary(fields), None]),
            )
        assert server("'empty'::texts", "range") == (EMPTY_RANGE_TEXT, EMPTY_RANGE_BINARY)
        assert server("'(,)'::texts", "range") == (range_to_text(None, None), range_to_binary(None, None))
        # Before 12 the digits of a float are not the fewest that tell it.
        some = (
            [(0.1, -0.0), (1e23, float("nan")), (float("-inf"), 5e-324)]
            if database.version >= 12
            else [(0.5, -0.0)]
        )
        for x, y in some:
            assert server("point(%s::float8, %s::float8)", "point", repr(x), repr(y)) == (
                point_to_text(x, y), point_to_binary(x, y),
            )  # fmt: skip
        if database.version >= 14:
            two = [("a", "b c"), ("d", None)]
            assert server(
                f"{multirange_of_texts(cursor)}(texts('a', 'b c'), texts('d', NULL))",
                "multirange",
            ) == (
                multirange_to_text([range_to_text(*each) for each in two]),
                multirange_to_binary(
                    [range_to_binary(a.encode(), b.encode() if b else None) for a, b in two]
                ),
            )


def multirange_of_texts(cursor: Any) -> str:
    cursor.execute("SELECT rngmultitypid::regtype::text FROM pg_range WHERE rngtypid = 'texts'::regtype")
    return str(cursor.fetchall()[0][0])


def test_what_no_server_writes() -> None:
    for wrong in (lambda: multirange_to_text(["empty"]), lambda: multirange_to_binary([b"\1"])):
        with pytest.raises(ValueError, match="empty"):
            wrong()
    for one in (range_to_text, range_to_binary):
        with pytest.raises(ValueError, match="brackets"):
            one(None, None, "][")  # type: ignore[arg-type]


# --- round trips --------------------------------------------------------------------------------------------

# A type is its name and those of its parts; a value is what Arrow gives back.
SCALARS = {"int4": 23, "text": 25, "float8": 701, "bool": 16}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int4": st.integers(-(2**31), 2**31 - 1),
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(ODD),
    "float8": st.floats(allow_nan=False),
    "bool": st.booleans(),
}
BRACKETS = st.sampled_from(["[)", "[]", "()", "(]"])


class Types:
    """User types, made as they are asked for; `below` has the oids in each of them."""

    def __init__(self) -> None:
        self.made: list[UserType] = []
        self.below: dict[int, list[int]] = {}

    def oid(self, kind: Any) -> int:
        if isinstance(kind, str):
            return SCALARS[kind]
        shape, *parts = kind
        below = self.below[id(kind)] = [self.oid(part) for part in parts]
        oid = 40_000 + len(self.made)
        if shape == "composite":
            fields = tuple(TypeField(f"f{k}", each) for k, each in enumerate(below))
            self.made.append(UserType(oid, "s", f"t{oid}", shape, fields=fields))
        else:
            self.made.append(UserType(oid, "s", f"t{oid}", shape, of=below[0]))
        return oid


def kinds() -> st.SearchStrategy[Any]:
    scalars = st.sampled_from(list(SCALARS))

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        spans = st.tuples(st.just("range"), scalars)
        elements = inner.filter(lambda kind: kind[0] != "array")
        return st.one_of(
            spans,
            st.tuples(st.just("multirange"), spans),
            st.tuples(st.just("domain"), inner),
            st.tuples(st.just("array"), elements.filter(lambda kind: kind[0] != "domain")),
            st.lists(inner, max_size=4).map(lambda parts: ("composite", *parts)),
        )

    return st.recursive(scalars, nested, max_leaves=6)


@st.composite
def cells(
    draw: Any, kind: Any, below: dict[int, list[int]], nullable: bool = True
) -> tuple[Any, str | None, bytes | None]:
    """(value, text, binary) of a type."""
    if nullable and draw(st.integers(0, 5)) == 0:
        return None, None, None
    if isinstance(kind, str):
        value = draw(VALUES[kind])
        return value, to_text(kind, value), to_binary(kind, value)
    shape, *parts = kind
    if shape == "domain":
        return draw(cells(parts[0], below, nullable=False))
    if shape == "composite":
        fields = [draw(cells(part, below)) for part in parts]
        pairs = zip(below[id(kind)], fields, strict=True)
        return (
            {f"f{k}": value for k, (value, _, _) in enumerate(fields)},
            record_to_text([text for _, text, _ in fields]),
            record_to_binary([(oid, binary) for oid, (_, _, binary) in pairs]),
        )
    if shape == "range":
        if draw(st.integers(0, 5)) == 0:
            nothing = {"lower": None, "upper": None, "lower_inc": False, "upper_inc": False, "empty": True}
            return nothing, EMPTY_RANGE_TEXT, EMPTY_RANGE_BINARY
        return draw(spans(parts[0], below))
    if shape == "multirange":
        found = draw(st.lists(spans(parts[0][1], below), max_size=3))
        return (
            [value for value, _, _ in found],
            multirange_to_text([text for _, text, _ in found]),
            multirange_to_binary([binary for _, _, binary in found]),
        )
    items = draw(st.lists(cells(parts[0], below), max_size=4))
    return (
        [value for value, _, _ in items],
        array_to_text([text for _, text, _ in items]),
        list_to_binary(below[id(kind)][0], [binary for _, _, binary in items]),
    )


@st.composite
def spans(draw: Any, bounds: Any, below: dict[int, list[int]]) -> tuple[Any, str, bytes]:
    (lower, lower_text, lower_binary), (upper, upper_text, upper_binary) = (
        draw(cells(bounds, below)) for _ in range(2)
    )
    brackets = draw(BRACKETS)
    value = {
        "lower": lower, "upper": upper, "lower_inc": lower is not None and brackets[0] == "[",
        "upper_inc": upper is not None and brackets[1] == "]", "empty": False,
    }  # fmt: skip
    return (
        value,
        range_to_text(lower_text, upper_text, brackets),
        range_to_binary(lower_binary, upper_binary, brackets),
    )


@pytest.mark.parametrize("examples", and_slow([60], [300]))
def test_what_is_written_is_what_is_decoded(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(st.data())(_written_is_decoded))()


def _written_is_decoded(data: st.DataObject) -> None:
    kind = data.draw(kinds())
    types = Types()
    oid = types.oid(kind)
    column_type = column_type_of(Column("c", oid), Options(), UserTypes(types.made))
    rows = data.draw(st.lists(cells(kind, types.below), min_size=1, max_size=6))
    rows = rows * data.draw(st.sampled_from([1, 1, 40]))
    for binary in (False, True):
        wire = [row[2] if binary else (row[1].encode() if row[1] is not None else None) for row in rows]
        got, issues = convert(column_type, wire, binary)
        got.validate(full=True)
        assert issues == []
        assert got.to_pylist() == [value for value, _, _ in rows]
        assert pa.types.is_struct(got.type) == (column_type.kernel in ("composite", "range"))
