"""Values that are looked up in the table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect, RowLostError
from pgoutput_fast.merge.effect.net_effect import net_effect
from support.changes import Changes

COLUMNS = {"id": pa.int64(), "part": pa.float64(), "t": pa.string(), "big": pa.list_(pa.string())}
NAN = float("nan")


def effect() -> Effect:
    """Row (1, NaN) becomes (2, 0.0); row (3, -0.0) stays where it is."""
    made = Changes(**COLUMNS).update(
        {"id": 1, "part": NAN, "_key_only": True}, id=2, part=0.0, _unchanged=["big"]
    )
    made.update(id=3, part=-0.0, _unchanged=["t", "big"]).update(id=4, part=1.0, t="sent", _marks=["big"])
    return net_effect(made.table(), ["id", "part"])


def found(*rows: dict[str, Any]) -> pa.Table:
    schema = {**COLUMNS, "_unrepresentable": pa.list_(pa.string())}
    return pa.Table.from_pylist(list(rows), pa.schema(schema))


ONE = {"id": 1, "part": NAN, "t": "of one", "big": ["one"]}
THREE = {"id": 3, "part": -0.0, "t": None, "big": None, "_unrepresentable": ["big", "part"]}


def test_keys_and_columns_that_are_wanted() -> None:
    keys, columns = effect().wanted()
    assert columns == ("t", "big", "_unrepresentable") or columns == ("big", "t", "_unrepresentable")
    assert sorted(map(str, keys.to_pylist())) == ["{'id': 1, 'part': nan}", "{'id': 3, 'part': -0.0}"]
    assert effect().filled(found(ONE, THREE)).wanted()[1] == ()


def test_nothing_is_wanted() -> None:
    whole = net_effect(Changes(**COLUMNS).insert(id=1, part=1.0).table(), ["id", "part"])
    keys, columns = whole.wanted()
    assert (keys.column_names, keys.num_rows, columns) == (["id", "part"], 0, ())
    assert whole.filled(keys) is whole


def test_values_come_from_the_rows_that_were_found() -> None:
    other = {"id": 3, "part": 0.0, "t": "wrong", "big": []}
    for rows in ([ONE, THREE, other], [other, THREE, ONE]):
        for table in (found(*rows), pa.concat_tables([found(rows[0]), found(*rows[1:])])):
            filled = effect().filled(table)
            assert filled.unfilled == ()
            assert filled.rows.select(["id", "t", "big", "_unrepresentable"]).to_pylist() == [
                {"id": 2, "t": None, "big": ["one"], "_unrepresentable": None},
                {"id": 3, "t": None, "big": None, "_unrepresentable": ["big"]},
                {"id": 4, "t": "sent", "big": None, "_unrepresentable": ["big"]},
            ]


def test_other_types_of_the_table() -> None:
    table = found(ONE, THREE)
    table = table.set_column(0, "id", table["id"].cast(pa.int32()))
    table = table.set_column(2, "t", table["t"].cast(pa.large_string()))
    assert effect().filled(table).rows.schema == effect().rows.schema


def test_a_row_that_the_table_lacks() -> None:
    for table in (found(ONE), found(THREE, {**ONE, "part": 0.0}), found()):
        with pytest.raises(
            RowLostError, match=r"the table lacks . rows? that changes refer to.*load the table"
        ):
            effect().filled(table)


def test_a_column_that_the_table_lacks() -> None:
    with pytest.raises(RowLostError, match="the table has no column 'big'"):
        effect().filled(found(ONE, THREE).drop_columns(["big"]))


def test_a_key_that_the_table_has_twice() -> None:
    with pytest.raises(ValueError, match="several rows with the same key"):
        effect().filled(found(ONE, THREE, ONE))
