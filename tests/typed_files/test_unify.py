"""The schema of all typed files of a table: from their footers, as relation versions are unified."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.typed_files.files import TypedFiles
from pgoutput_fast.typed_files.unify import find_typed_table

SOURCE = Source("1", "shop", "slot")
ID, WIDE_ID, NOTE = ColumnSpec("id", 23, key=True), ColumnSpec("id", 20, key=True), ColumnSpec("note", 25)


def _orders(*columns: ColumnSpec) -> RelationSpec:
    return RelationSpec(16401, "public", "orders", columns)


def _capture(directory: Path, *changes: tuple[RelationSpec, Sequence[Any]], **options: Any) -> None:
    """A segment for each change, and typed files."""
    state = None
    for n, (spec, values) in enumerate(changes):
        writer = Writer()
        wal = writer.begin(n + 1, 100 * n + 100, n) + writer.change(spec, "insert", new=list(values))
        tagged, state = pgo.tag(wal + writer.commit(100 * n + 100, 100 * n + 108, n), state)
        write_segment(directory, tagged, state, source=SOURCE)
    TypedFiles(open_store(directory), pgo.Options(**options)).catch_up()


def _own(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema if not field.name.startswith("_")}


def test_versions_are_unified_and_the_newest_comes_first(tmp_path: Path) -> None:
    first, second = _orders(ID, NOTE), _orders(ColumnSpec("at", 1083), WIDE_ID)
    _capture(tmp_path, (first, ["1", "a"]), (second, ["12:00:00", "2"]), (first, ["3", "c"]))
    found = find_typed_table(open_store(tmp_path), "public.orders")
    # The first version has returned.
    assert _own(found.schema) == {"id": "int64", "note": "string", "at": "string"}
    assert [name.split("/")[:2] for name in found.directories] == [["typed", "public.orders"]] * 2
    for path in sorted((tmp_path / "typed").rglob("*0000000008*.parquet")):
        path.unlink()
    assert list(_own(find_typed_table(open_store(tmp_path), "public.orders").schema)) == ["at", "id", "note"]


def test_files_of_one_version_may_differ(tmp_path: Path) -> None:
    """The options of the captures differed."""
    spec = _orders(ID, ColumnSpec("real", 700))
    _capture(tmp_path, (spec, ["1", "2.5"]))
    (file,) = (tmp_path / "typed").rglob("0*.parquet")
    table = pq.read_table(file, partitioning=None)
    wider = table.schema.set(table.schema.get_field_index("id"), pa.field("id", pa.int64()))
    pq.write_table(table.cast(wider).drop_columns(["real"]), file.with_name("00000000000000000009-9.parquet"))
    found = find_typed_table(open_store(tmp_path), "public.orders")
    assert _own(found.schema) == {"id": "int64", "real": "float"}
    assert len(found.directories) == 1


def test_what_has_no_schema(tmp_path: Path) -> None:
    _capture(tmp_path, (_orders(ID), ["1"]), (_orders(ColumnSpec("id", 25)), ["one"]))
    with pytest.raises(ValueError, match=r"public\.orders: column 'id' is int32 in version .* and string"):
        find_typed_table(open_store(tmp_path), "public.orders")


def test_unknown_tables_and_no_files(tmp_path: Path) -> None:
    make = r"no typed files in .*: pass the directory of the segments.*Capture\(\.\.\., typed=True\)"
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=make):
            find_typed_table(open_store(directory), "public.orders")
    odd = RelationSpec(2, "so.called", 'a/b "%c"', (ID,))
    _capture(tmp_path, (_orders(ID), ["1"]), (odd, ["2"]))
    assert (
        find_typed_table(open_store(tmp_path), '"so.called"."a/b ""%c"""')
        .directories[0]
        .startswith("typed/so%2Ecalled.a%2Fb%20%22%25c%22/")
    )
    for table in ("public.nothing", "orders", "PUBLIC.ORDERS.", 'public."Orders"'):
        with pytest.raises(KeyError, match=r'no relation .*; there is "so\.called".*public\.orders'):
            find_typed_table(open_store(tmp_path), table)
    with pytest.raises(FileNotFoundError, match=make):
        find_typed_table(open_store(tmp_path / "typed"), "public.orders")


def test_unfinished_and_foreign_files(tmp_path: Path) -> None:
    _capture(tmp_path, (_orders(ID), ["1"]))
    (file,) = (tmp_path / "typed").rglob("0*.parquet")
    for name in (f".{file.name}.{'ab' * 8}", f".{file.name}", f"_{file.name}"):
        file.with_name(name).write_bytes(b"never finished")
    # Retention has removed this file since the directory was listed.
    os.symlink(tmp_path / "gone", file.with_name("9.parquet"))
    assert _own(find_typed_table(open_store(tmp_path), "public.orders").schema) == {"id": "int32"}
    other = file.with_name("8.parquet")
    pq.write_table(pa.table({"id": [1]}), other)
    with pytest.raises(ValueError, match=r"8\.parquet is not a typed file"):
        find_typed_table(open_store(tmp_path), "public.orders")
    other.write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match=r"typed file .*8\.parquet is damaged"):
        find_typed_table(open_store(tmp_path), "public.orders")
