"""Lists of names and the rows that they name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.column_names import naming_rows, with_names

NAMES = pa.list_(pa.string())
LISTS = [None, ["b"], [], ["a", "b"], None, ["c", "a"]]


def test_rows_of_each_name() -> None:
    whole = pa.array([["x"], *LISTS, ["x"]], NAMES)[1:-1]
    for column in (pa.chunked_array([whole]), pa.chunked_array([whole[:2], whole[2:2], whole[2:]])):
        found = {name: rows.tolist() for name, rows in naming_rows(column).items()}
        assert found == {"b": [1, 3], "a": [3, 5], "c": [5]}


def test_no_names() -> None:
    assert naming_rows(pa.chunked_array([], NAMES)) == {}
    assert naming_rows(pa.chunked_array([pa.nulls(3, NAMES)])) == {}
    assert naming_rows(pa.chunked_array([pa.array([[], None], NAMES)])) == {}
    for named in ({}, {"a": np.array([], np.int64)}):
        assert with_names(named, 2).equals(pa.nulls(2, NAMES))


def test_there_and_back() -> None:
    named = naming_rows(pa.chunked_array([pa.array(LISTS, NAMES)]))
    back = with_names({name: named[name] for name in ("a", "b", "c")}, len(LISTS))
    back.validate(full=True)
    assert back.to_pylist() == [None, ["b"], None, ["a", "b"], None, ["a", "c"]]
