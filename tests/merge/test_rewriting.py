"""Rows that go from files, and rows that take their places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.merge.rewriting import Search, rewritten
from pgoutput_fast.storage.stores import open_store
from support import numbered


def _file(place: Path, name: str, *ids: int) -> None:
    pq.write_table(numbered.rows(ids), place / name, row_group_size=2)


def test_a_row_that_comes_takes_one_place(tmp_path: Path) -> None:
    """Also if a file has its key twice, or if two files have it."""
    _file(tmp_path, "a", 1, 2, 3, 2)
    _file(tmp_path, "b", 2, 4)
    store, new = open_store(tmp_path), numbered.rows([2], "new")
    search = Search(numbered.keys(3, 2), np.array([-1, 0]), keys=True)
    found = {name: search.look_into(store, name, numbered.SCHEMA) for name in ("a", "b")}
    search.check_all_gone("it")
    rows = [
        [(row["id"], row["text"]) for part in parts for row in part.to_pylist()]
        for parts in (
            rewritten(store, name, numbered.SCHEMA, each, lambda numbers: new.take(pa.array(numbers)))
            for name, each in found.items()
        )
    ]
    assert rows == [[(1, "x"), (2, "new")], [(4, "x")]]


def test_a_file_without_such_rows_stays_as_it_is(tmp_path: Path) -> None:
    _file(tmp_path, "a", 1, 2, 3)
    store = open_store(tmp_path)
    search = Search(numbered.keys(7), np.array([0]), keys=True)
    assert search.look_into(store, "a", numbered.SCHEMA) is None
    parts = rewritten(store, "a", numbered.SCHEMA, None, lambda _: pytest.fail("no row comes"))
    assert pa.concat_tables(parts).equals(numbered.rows([1, 2, 3]))


def test_copies_go_as_often_as_they_are_wanted(tmp_path: Path) -> None:
    _file(tmp_path, "a", 1, 1, 2)
    _file(tmp_path, "b", 1, 1)
    wanted = numbered.rows([1, 1, 1]).drop_columns(["_commit_lsn"])
    store, search = open_store(tmp_path), Search(wanted, np.full(3, -1), keys=False)
    found = search.look_into(store, "a", numbered.SCHEMA)
    assert found is not None
    assert (found.rows.tolist(), found.comes.tolist()) == ([0, 1], [-1, -1])
    with pytest.raises(ValueError, match="it lacks rows that go"):
        search.check_all_gone("it")
    found = search.look_into(store, "b", numbered.SCHEMA)
    assert found is not None
    assert found.rows.tolist() == [0]
    search.check_all_gone("it")
