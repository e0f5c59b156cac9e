"""Columns that get other names in place: each effect has the columns of its time, however the changes are divided."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.fill import Fill, parts_of
from pgoutput_fast.merge.effect.renames import Rename

# (commit, ordinal, type, the altered columns, id, b, c)
_CHANGES = (
    (10, 1, "insert", None, 1, "x", None),
    (20, 2, "insert", None, 2, "y", None),
    (20, 3, "alter", ["b", "c"], None, None, None),
    (20, 4, "insert", None, 3, None, "z"),
    (30, 1, "alter", ["", "b"], None, None, None),
    (30, 2, "insert", None, 4, "new", None),
)
_RENAMES = (Rename(20, 4, "b", "c"), Rename(30, 2, "", "b"))


def _table(rows: tuple[tuple[object, ...], ...]) -> pa.Table:
    names = ("_commit_lsn", "_seq", "_change_type", "_unchanged", "id", "b", "c")
    numbers, text = pa.int64(), pa.string()
    types = (numbers, numbers, text, pa.list_(text), numbers, text, text)
    found = {
        name: pa.array([row[k] for row in rows], type)
        for k, (name, type) in enumerate(zip(names, types, strict=True))
    }
    more = {
        "_key_only": pa.array([False] * len(rows)),
        "_unrepresentable": pa.nulls(len(rows), pa.list_(text)),
    }
    return pa.table(found | more)


@pytest.mark.parametrize("cut", range(1, len(_CHANGES)))
@pytest.mark.parametrize("key", [["id"], []])
def test_each_effect_has_the_columns_of_its_time(key: list[str], cut: int) -> None:
    seen: list[object] = []
    for rows in (_CHANGES[:cut], _CHANGES[cut:]):
        for part in parts_of(_table(rows), key, _RENAMES):
            if isinstance(part, Fill):
                assert not len(part.schema)
                seen.append(part.renamed)
                continue
            assert isinstance(part, Effect)
            seen += [
                {name: value for name, value in row.items() if name[0] != "_"}
                for row in part.rows.to_pylist()
            ]
    assert seen == [
        {"id": 1, "b": "x"},
        {"id": 2, "b": "y"},
        {"c": "b"},
        {"id": 3, "c": "z"},
        {"id": 4, "b": "new", "c": None},
    ]


def test_beside_the_old_column() -> None:
    """Without a rename in place, the old column stays."""
    _, fill, _ = parts_of(_table(_CHANGES[:4]), ["id"])
    assert isinstance(fill, Fill)
    assert (fill.sources, fill.renamed) == ({"c": "b"}, {})


_MARKED = pa.table(
    {
        "b": pa.nulls(4),
        "z": pa.nulls(4),
        "_unrepresentable": pa.array([["b", "z"], None, ["z"], ["b"]], pa.list_(pa.string())),
    }
)


def test_marks_get_the_new_name() -> None:
    """A value without an Arrow form, which is null, is marked by the name of its column."""
    fill = Fill(pa.table({}), pa.table({}), renamed={"c": "b"})
    rows = fill.rename(_MARKED, ["c", "z"])
    assert rows.column_names == ["c", "z", "_unrepresentable"]
    assert rows["_unrepresentable"].to_pylist() == [["c", "z"], None, ["z"], ["c"]]


@pytest.mark.parametrize("columns", [["b", "c", "z", "_unrepresentable"], ["_unrepresentable"]])
def test_marks_of_a_column_beside_the_old_one(columns: list[str]) -> None:
    """Whatever columns are read."""
    fill = Fill(pa.table({}), pa.table({"c": pa.nulls(1)}), {"c": "b"}).of(columns)
    rows = fill.apply(_MARKED.append_column("c", pa.nulls(4)).select(columns), ["b", "z", "c"])
    assert rows.column_names == columns
    assert rows["_unrepresentable"].to_pylist() == [["b", "z", "c"], None, ["z"], ["b", "c"]]
