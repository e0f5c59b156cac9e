"""`current_sink` without a mirror: what was done to a table is an error where its current table would be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.mirror import at
from pgoutput_fast.segments import Source, list_segments, write_segment
from pgoutput_fast.tables.file_table import CurrentFileTable
from support.current_streams import batch_of
from support.forms import and_slow
from support.mirrors import current_of

_SOURCE = Source("7300000000000000004", "shop", "slot", ("all",), {"proto_version": "1"})
_ORDERS = RelationSpec(30000, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
_ARRAYS = (ColumnSpec("id", 23, key=True), ColumnSpec("part", 1007))
_KEYED = (ColumnSpec("id", 23, key=True), ColumnSpec("part", 1007, key=True))


def _named(name: str, oid: int = _ORDERS.oid) -> RelationSpec:
    return RelationSpec(oid, "public", name, _ORDERS.columns)


def _write(directory: Path, segments: Sequence[Sequence[tuple[RelationSpec, list[Any]]]]) -> None:
    """Writes segments of rows that are inserted, each in a transaction of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    writer, state, n = Writer(1), None, 0
    for rows in segments:
        wal: list[bytes] = []
        for relation, row in rows:
            n += 1
            wal += writer.begin(100 + n, 1000 * n, n)
            wal += writer.change(relation, "insert", new=row)
            wal += writer.commit(1000 * n, 1000 * n + 8, n)
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=_SOURCE)


def _take(spark: Any, segments: Path, lake: Path, *numbers: int) -> None:
    """Gives segments to a new sink, a batch each."""
    found = list_segments(segments)
    sink = pgspark.current_sink(lake)
    for k in numbers:
        sink(batch_of(spark, segments, found[k].first_seq, found[k].last_seq), k)


def _ids(lake: Path) -> list[int]:
    return sorted(current_of(lake, "public.orders")["id"].to_pylist())


@pytest.mark.parametrize("batches", and_slow([2], [1]))
def test_a_table_that_has_another_name_now(spark: Any, tmp_path: Path, batches: int) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    before, after = (_ORDERS, ["1", "a"]), (_named("sold"), ["2", "b"])
    _write(segments, [[before, after]] if batches == 1 else [[before], [after]])
    if batches == 2:
        _take(spark, segments, lake, 0)
    with pytest.raises(ValueError, match=r"public\.sold had the name public\.orders before"):
        _take(spark, segments, lake, batches - 1)
    assert not (lake / "current/public.sold").exists()
    assert batches == 1 or _ids(lake) == [1]


def test_two_tables_that_change_their_names(spark: Any, tmp_path: Path) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    other = _named("items", 30001)
    _write(
        segments,
        [
            [(_ORDERS, ["1", "a"]), (other, ["1", "a"])],
            [(_named("items"), ["2", "b"]), (_named("orders", 30001), ["2", "b"])],
        ],
    )
    _take(spark, segments, lake, 0)
    with pytest.raises(ValueError, match="the server has another table of this name now"):
        _take(spark, segments, lake, 1)


def test_another_table_without_notes(spark: Any, tmp_path: Path) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    _write(segments, [[(_ORDERS, ["1", "a"])], [(_named("orders", 30001), ["1", "a"])]])
    _take(spark, segments, lake, 0)
    (lake / "_mirror/spark.json").unlink()
    with pytest.raises(ValueError, match=r"but _mirror/spark\.json, which records .*, is gone"):
        _take(spark, segments, lake, 1)
    with pytest.raises(ValueError, match="the server has another table of this name now"):
        _take(spark, segments, lake, 0, 1)


@pytest.mark.slow
def test_notes_that_are_lost(spark: Any, tmp_path: Path) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    _write(segments, [[(_ORDERS, [str(k), "a"])] for k in range(3)])
    _take(spark, segments, lake, 0)
    (lake / "_mirror/spark.json").unlink()
    with pytest.raises(ValueError, match="the batch begins at message"):
        _take(spark, segments, lake, 2)
    _take(spark, segments, lake, 0, 1, 2)  # from the beginning: what the tables have does not come twice
    assert _ids(lake) == [0, 1, 2]


def test_a_table_that_is_lost_before_a_batch_without_it(spark: Any, tmp_path: Path) -> None:
    """No point has it then, and a batch that runs again must not miss it."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    items = _named("items", 30001)
    row = (_ORDERS, ["1", "a"])
    _write(segments, [[row, (items, ["1", "a"])], [(_ORDERS, ["2", "a"])], [(items, ["2", "b"])]])
    _take(spark, segments, lake, 0)
    shutil.rmtree(lake / "current/public.items")
    _take(spark, segments, lake, 0, 1)
    assert set(at(lake)) == {"public.orders"}
    with pytest.raises(ValueError, match=r"the current table of public\.items in .* is gone"):
        _take(spark, segments, lake, 2)


def test_a_table_that_is_made_again_behind_a_removed_one(spark: Any, tmp_path: Path) -> None:
    """The server has another table of the name, and somebody has removed the current table of the old one."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    _write(segments, [[(_ORDERS, ["1", "a"])], [(_named("orders", 30001), ["7", "b"])]])
    _take(spark, segments, lake, 0)
    shutil.rmtree(lake / "current/public.orders")
    _take(spark, segments, lake, 1)
    assert _ids(lake) == [7]


def test_a_first_batch_that_fails_behind_retention(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    items = _named("items", 30001)
    _write(segments, [[(_ORDERS, ["0", "a"])], [(_ORDERS, ["1", "a"]), (items, ["1", "a"])]])
    Path(list_segments(segments)[0].path).unlink()
    commit, calls = CurrentFileTable.commit, []

    def killed(self: CurrentFileTable, *arguments: Any, **more: Any) -> Any:
        calls.append(self)
        if len(calls) == 2:
            raise RuntimeError("killed")
        return commit(self, *arguments, **more)

    monkeypatch.setattr(CurrentFileTable, "commit", killed)
    with pytest.raises(RuntimeError, match="killed"):
        _take(spark, segments, lake, 0)
    assert any((lake / "current").iterdir())
    _take(spark, segments, lake, 0)
    assert _ids(lake) == [1]
    assert set(at(lake)) == {"public.orders", "public.items"}


def test_another_name_with_a_catalog_of_types(spark: Any, tmp_path: Path) -> None:
    """The catalog of a snapshot has the newest versions, and comes first."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    _write(segments, [[(_ORDERS, ["1", "a"]), (_named("sold"), ["2", "b"])]])
    catalog = list_segments(segments)[0].state.catalog
    (sold,) = (each for each in catalog.relations if each.name == "sold")
    found = list_segments(segments)
    for tables in (None, ["public.sold"]):
        sink = pgspark.current_sink(lake, tables, catalog=pgo.Catalog((sold,)))
        with pytest.raises(ValueError, match=r"public\.sold had the name public\.orders before"):
            sink(batch_of(spark, segments, found[0].first_seq, found[0].last_seq), 0)


@pytest.mark.parametrize("batches", [1, 2])
def test_an_array_joins_the_key(spark: Any, tmp_path: Path, batches: int) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    rows = [
        (RelationSpec(30000, "public", "orders", columns), [str(k), "{1,2}"])
        for k, columns in enumerate([_ARRAYS, _KEYED])
    ]
    _write(segments, [rows] if batches == 1 else [[each] for each in rows])
    if batches == 2:
        _take(spark, segments, lake, 0)
    with pytest.raises(ValueError, match=r"public\.orders: its key now has the column 'part'"):
        _take(spark, segments, lake, batches - 1)


def test_arrays_that_were_in_the_key(spark: Any, tmp_path: Path) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    keyed = RelationSpec(30000, "public", "orders", _KEYED)
    _write(segments, [[(keyed, ["1", "{1,2}"])], [(keyed, ["2", "{1,2}"])]])
    _take(spark, segments, lake, 0)
    _take(spark, segments, lake, 1)
    assert _ids(lake) == [1, 2]


def test_a_renamed_table_takes_the_place_of_a_removed_one(spark: Any, tmp_path: Path) -> None:
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    _write(
        segments,
        [
            [(_ORDERS, ["1", "a"]), (_named("orders_new", 30001), ["1", "a"])],
            [(_named("orders", 30001), ["2", "b"])],
        ],
    )
    _take(spark, segments, lake, 0)
    shutil.rmtree(lake / "current/public.orders")
    with pytest.raises(ValueError, match=r"public\.orders had the name public\.orders_new before"):
        _take(spark, segments, lake, 1)


def test_a_table_that_is_lost_with_notes_of_before(spark: Any, tmp_path: Path) -> None:
    """Notes of an earlier version do not name the tables that are there."""
    segments, lake = tmp_path / "segments", tmp_path / "lake"
    _write(segments, [[(_ORDERS, [str(k), "a"])] for k in range(2)])
    _take(spark, segments, lake, 0)
    file = lake / "_mirror/spark.json"
    notes = json.loads(file.read_text())
    file.write_text(json.dumps({name: notes[name] for name in notes.keys() - {"there", "keys"}}))
    shutil.rmtree(lake / "current/public.orders")
    with pytest.raises(ValueError, match=r"the current table of public\.orders in .* is gone"):
        _take(spark, segments, lake, 1)
