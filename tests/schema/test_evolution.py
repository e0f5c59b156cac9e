"""One schema for several versions, unified or pinned: nothing is ever narrowed, and errors name versions and columns."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.schema.evolution import fits, widen

BEGIN, COMMIT = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)
META = [
    "_change_type", "_seq", "_lsn", "_txn", "_xid", "_subxid", "_commit_lsn", "_commit_timestamp", "_key_only", "_unchanged",
    "_unrepresentable",
]  # fmt: skip
INT2, INT4, INT8, TEXT, VARCHAR, FLOAT4, FLOAT8, NUMERIC, INT4_LIST, INT8_LIST = (
    21,
    23,
    20,
    25,
    1043,
    700,
    701,
    1700,
    1007,
    1016,
)


def decoded(
    *versions: tuple[dict[str, int | tuple[int, int]], list[str | None]], **options: Any
) -> pgo.Decoded:
    """One insert per version of public.t: ({column: type oid or (oid, typmod)}, cells)."""
    payloads = [BEGIN]
    for columns, cells in versions:
        specs = [
            ColumnSpec(name, *(kind if isinstance(kind, tuple) else (kind, -1)))
            for name, kind in columns.items()
        ]
        payloads += [encode.encode_relation(RelationSpec(16384, "public", "t", tuple(specs)))]
        payloads += [encode.encode_insert(16384, cells)]
    return pgo.decode([*payloads, COMMIT], options=pgo.Options(**options))


def own(table: pa.Table) -> list[dict[str, Any]]:
    return table.drop_columns([name for name in META if name in table.column_names]).to_pylist()


def decimal(precision: int, scale: int) -> tuple[int, int]:
    return NUMERIC, ((precision << 16) | scale) + 4


@pytest.mark.parametrize(
    ("a", "b", "wide"),
    [
        (pa.int16(), pa.int32(), pa.int32()), (pa.int64(), pa.int16(), pa.int64()), (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(8, 2), pa.decimal128(8, 2)),
        (pa.decimal128(5, 2), pa.decimal128(6, 4), pa.decimal128(7, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 1), None), (pa.int32(), pa.float64(), None), (pa.int32(), pa.string(), None),
        (pa.date32(), pa.timestamp("us"), None), (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.list_(pa.int16()), pa.list_(pa.int64()), pa.list_(pa.int64())), (pa.list_(pa.int16()), pa.int16(), None),
        (pa.list_(pa.int16()), pa.list_(pa.string()), None),
        (pa.struct([("a", pa.int16())]), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int16())]), pa.struct([("b", pa.int16())]), None),
        (pa.struct([("a", pa.int16())]), pa.struct([("a", pa.string())]), None),
    ],
)  # fmt: skip
def test_widening_holds_every_value_of_both(a: pa.DataType, b: pa.DataType, wide: pa.DataType | None) -> None:
    assert widen(a, b) == wide
    assert widen(b, a) == wide
    assert widen(a, a) == a
    if wide is not None:
        assert fits(a, wide)
        assert fits(b, wide)
    assert fits(a, b) == (wide == b)


def test_layouts_of_strings_fit_each_other() -> None:
    assert fits(pa.string(), pa.large_string())
    assert fits(pa.list_(pa.string()), pa.large_list(pa.large_string()))
    assert fits(pa.binary(), pa.large_binary())
    assert not fits(pa.string(), pa.binary())


def test_versions_are_matched_by_name_and_widened() -> None:
    out = decoded(
        ({"a": INT2, "b": TEXT, "n": decimal(5, 2), "l": INT4_LIST}, ["1", "x", "1.25", "{1}"]),
        (
            {"b": VARCHAR, "a": INT8, "n": decimal(8, 1), "f": FLOAT4, "l": INT8_LIST},
            ["y", "2", "2.5", "0.5", "{2}"],
        ),
        ({"a": INT4, "n": decimal(3, 3), "f": FLOAT8}, ["3", "0.125", "0.25"]),
    )
    table = out.table("public.t")
    kinds = {field.name: field.type for field in table.schema if field.name not in META}
    assert kinds == {
        "a": pa.int64(), "n": pa.decimal128(10, 3), "f": pa.float64(), "b": pa.string(), "l": pa.list_(pa.int64()),
    }  # fmt: skip
    assert table.column("a").to_pylist() == [1, 2, 3]
    assert [str(n) for n in table.column("n").to_pylist()] == ["1.250", "2.500", "0.125"]
    assert table.column("f").to_pylist() == [None, 0.5, 0.25]
    assert table.column("b").to_pylist() == ["x", "y", None]
    assert table.column("l").to_pylist() == [[1], [2], None]
    assert table.schema.metadata[b"pg.version"] == str(out.changes[-1].relation.version).encode()


def test_versions_that_are_no_one_table_are_named_both() -> None:
    out = decoded(({"a": INT4}, ["1"]), ({"a": TEXT}, ["x"]), ({"b": INT4}, ["2"]))
    with pytest.raises(ValueError, match=r"'a' is int32 .* and string") as caught:
        out.table("public.t")
    for each in out.changes[:2]:
        assert str(each.relation.version) in str(caught.value)
    assert [each.batch.num_rows for each in out.changes] == [1, 1, 1]


# --- pinned -----------------------------------------------------------------------------------------------

GROWING = (({"a": INT2, "b": TEXT}, ["1", "x"]), ({"a": INT4, "b": TEXT, "c": INT4}, ["2", "y", "5"]))


def test_pinned_schema_holds_whatever_versions_come() -> None:
    pinned = pa.schema(
        [("b", pa.large_string()), ("a", pa.int64()), ("z", pa.date32())], metadata={"mine": "yes"}
    )
    out = decoded(*GROWING)
    table = out.table("public.t", schema=pinned, extra_columns="drop")
    assert table.schema == pa.schema([*[*out.changes[0].batch.schema][:11], *pinned])
    assert table.schema.metadata == {b"mine": b"yes"}
    table.validate(full=True)
    assert own(table) == [{"b": "x", "a": 1, "z": None}, {"b": "y", "a": 2, "z": None}]
    one = decoded(GROWING[0]).table("public.t", schema=pinned, extra_columns="drop")
    assert one.schema == table.schema
    assert out.table(16384, schema=pinned, extra_columns="drop") == table


def test_pinned_schema_that_lacks_a_column_is_an_error_unless_it_is_to_be_dropped() -> None:
    pinned = pa.schema([("a", pa.int64()), ("b", pa.string())])
    out = decoded(*GROWING)
    with pytest.raises(ValueError, match="has 'c', which the pinned schema lacks") as caught:
        out.table("public.t", schema=pinned)
    assert str(out.changes[1].relation.version) in str(caught.value)
    assert own(out.table("public.t", schema=pinned, extra_columns="drop"))[1] == {"a": 2, "b": "y"}


@pytest.mark.parametrize(
    ("kind", "cell", "pinned"),
    [
        (INT8, "1", pa.int32()), (INT4, "1", pa.float64()), (INT4, "1", pa.string()), (FLOAT8, "0.5", pa.float32()),
        (decimal(6, 3), "1.125", pa.decimal128(6, 2)), (decimal(6, 2), "1.25", pa.decimal128(6, 3)), (TEXT, "1", pa.int32()),
        (INT8_LIST, "{1}", pa.list_(pa.int32())), (TEXT, "1", pa.binary()),
    ],
)  # fmt: skip
def test_pinned_type_that_is_too_narrow_is_an_error_even_if_the_values_would_fit(
    kind: Any, cell: str, pinned: pa.DataType
) -> None:
    out = decoded(({"v": kind}, [cell]))
    with pytest.raises(ValueError, match=r"'v' as .* values that do not fit") as caught:
        out.table("public.t", schema=pa.schema([("v", pinned)]))
    assert str(out.changes[0].relation.version) in str(caught.value)
    assert str(pinned) in str(caught.value)


def test_pinned_field_that_is_never_null_is_held_to_it() -> None:
    never = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert own(decoded(({"a": INT4}, ["1"])).table("public.t", never)) == [{"a": 1}]
    with pytest.raises(ValueError, match="'a' has nulls"):
        decoded(({"a": INT4}, [None])).table("public.t", never)
    with pytest.raises(ValueError, match="lacks 'a'"):
        decoded(({"b": INT4}, ["1"])).table("public.t", never, extra_columns="drop")


def test_pinned_relation_version_stands_for_its_columns() -> None:
    out = decoded(*GROWING)
    first, second = (each.relation for each in out.changes)
    assert own(out.table("public.t", schema=second)) == [
        {"a": 1, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": 5},
    ]
    assert out.table("public.t", schema=second).schema.metadata[b"pg.version"] == str(second.version).encode()
    with pytest.raises(ValueError, match="int32, which has values that do not fit"):
        out.table("public.t", schema=first, extra_columns="drop")


def test_table_of_an_earlier_call_pins_the_next() -> None:
    wide = decoded(*reversed(GROWING)).table("public.t")
    again = decoded(GROWING[0]).table("public.t", schema=wide.schema)
    assert again.schema.equals(wide.schema, check_metadata=True)
    wrong = wide.schema.set(1, pa.field("_seq", pa.int32()))
    with pytest.raises(ValueError, match="'_seq' is int64"):
        decoded(GROWING[0]).table("public.t", schema=wrong)


def test_options_pin_schemas_by_name_or_oid() -> None:
    pinned = pa.schema([("a", pa.int64())])
    for key in ("public.t", 'PUBLIC."t"', 16384):
        options = pgo.Options(schemas={key: pinned}, extra_columns="drop")
        assert pickle.loads(pickle.dumps(options)) == options
        assert isinstance(hash(options), int)
        table = decoded(*GROWING, schemas={key: pinned}, extra_columns="drop").table(
            16384 if key == 16384 else "public.t"
        )
        assert own(table) == [{"a": 1}, {"a": 2}]
    strict = decoded(*GROWING, schemas={"public.t": pinned})
    with pytest.raises(ValueError, match="'b'"):
        strict.table("public.t")
    assert len(own(strict.table("public.t", extra_columns="drop"))) == 2
    assert strict.table("public.t", schema=strict.changes[1].relation).num_columns == 14
    other = decoded(*GROWING, schemas={"public.other": pinned})
    assert other.table("public.t").num_columns == 14


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"schemas": [("a", 1)]}, TypeError), ({"schemas": {"public.t": ["a"]}}, TypeError), ({"schemas": {None: pa.schema([])}}, TypeError),
        ({"schemas": {"t": pa.schema([])}}, ValueError), ({"extra_columns": "keep"}, ValueError),
        ({"schemas": {"s.t": pa.schema([("a", pa.int8()), ("a", pa.int8())])}}, ValueError),
    ],
)  # fmt: skip
def test_pins_that_are_none(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        pgo.Options(**options)


def test_arguments_of_table_that_are_none() -> None:
    out = decoded(*GROWING)
    with pytest.raises(TypeError, match="Schema or a Relation"):
        out.table("public.t", schema={"a": "int64"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extra_columns"):
        out.table("public.t", extra_columns="keep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="twice"):
        out.table("public.t", schema=pa.schema([("a", pa.int64()), ("a", pa.int64())]))


def test_a_version_that_came_back_leads() -> None:
    one, two = ({"a": INT2, "b": TEXT}, ["1", "x"]), ({"b": TEXT, "a": INT4}, ["y", "2"])
    for mode in ("as_sent", "committed"):
        out = decoded(one, two, one, transactions=mode)
        table = out.table("public.t")
        assert table.column_names[len(META) :] == ["a", "b"]
        assert table.schema.metadata[b"pg.version"] == str(out.changes[0].relation.version).encode()
        assert table.column("a").to_pylist() == [1, 2, 1]


def test_a_pinned_version_has_the_types_that_the_catalog_explains() -> None:
    pair = pgo.UserType(20001, "public", "pair", "composite", fields=(pgo.TypeField("x", INT4, -1),))
    relation = RelationSpec(16384, "public", "t", (ColumnSpec("c", 20001),))
    payloads = [BEGIN, encode.encode_relation(relation), encode.encode_insert(16384, ["(5)"]), COMMIT]
    for mode in ("as_sent", "committed"):
        decoder = pgo.Decoder(pgo.Options(transactions=mode), catalog=pgo.Catalog(types=[pair]))
        out = decoder.decode(payloads)
        pinned = decoder.catalog.named("public.t")[0]
        assert own(out.table("public.t", schema=pinned)) == [{"c": {"x": 5}}]
    tagged, state = pgo.tag(payloads)
    again = pgo.decode_tagged(tagged, pgo.Catalog([pinned], [pair]))
    assert own(again.table("public.t", schema=pinned)) == [{"c": {"x": 5}}]
    assert own(pgo.decode(payloads).table("public.t", schema=state.catalog.named("public.t")[0])) == [
        {"c": "(5)"}
    ]


def test_a_table_of_many_versions_costs_what_its_versions_do() -> None:
    """CPU time of four times as many versions, each with a column of its own: sixteen times as much where quadratic."""

    def seconds(count: int) -> float:
        out = decoded(*(({"id": INT4, f"c{k}": TEXT}, ["1", str(k)]) for k in range(count)))
        spent = []
        for _ in range(5):
            start = time.process_time()
            table = out.table("public.t")
            spent.append(time.process_time() - start)
        assert (table.num_rows, table.num_columns) == (count, len(META) + 1 + count)
        assert table.column(f"c{count // 2}").drop_null().to_pylist() == [str(count // 2)]
        assert table.column(f"c{count // 2}")[count // 2].as_py() == str(count // 2)
        return min(spent)

    assert seconds(1_200) < 10 * seconds(300)


def test_versions_that_come_and_go_keep_their_rows() -> None:
    """Columns that only some have, of types that are widened, of batches without any row in between."""
    versions = [
        {"id": INT2, "a": TEXT},
        {"id": INT8},
        {"id": INT4, "b": FLOAT4},
        {"id": INT2, "a": TEXT},
        {"b": FLOAT8},
    ]
    rows: list[list[str | None]] = [["1", "x"], ["2"], ["3", "0.5"], ["4", None], ["0.25"]]
    table = decoded(*zip(versions, rows, strict=True)).table("public.t")
    table.validate(full=True)
    assert own(table) == [
        {"b": None, "id": 1, "a": "x"},
        {"b": None, "id": 2, "a": None},
        {"b": 0.5, "id": 3, "a": None},
        {"b": None, "id": 4, "a": None},
        {"b": 0.25, "id": None, "a": None},
    ]
