"""Current tables in a lake of DuckLake: snapshots, durable files, and what DuckLake cannot have."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb as engine
import pyarrow as pa
import pytest

from pgoutput_fast.merge.duckdb import DuckDBMerge
from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.tables import duckdb, ducklake
from support import numbered
from support.current_tables import Model, RandomEffects, ducklake_table
from support.ducklake import LAKE
from support.readers import query_lake

EMPTY = pa.table({"id": pa.array([], pa.int64())})


@pytest.fixture
def loaded(tmp_path: Path) -> DuckDBMerge:
    return numbered.load(ducklake_table(tmp_path / "below" / "x.ducklake", 'or"ders', "Shop 1"))


def _query(place: Path, query: str) -> list[Any]:
    return query_lake(place, query).fetchall()  # type: ignore[no-any-return]


@LAKE
def test_queries_see_the_rows_of_snapshots(loaded: DuckDBMerge, tmp_path: Path) -> None:
    first = loaded.version()
    loaded.apply(numbered.effect([5], [6, 2000]), 2)
    assert first is not None
    assert loaded.version() == first + 1
    place = tmp_path / "below" / "x.ducklake"
    query = 'SELECT count(*), max(id), max(text) FROM lake."Shop 1"."or""ders" AT (VERSION => {})'
    assert _query(place, query.format(first + 1)) == [(1000, 2000, "x")]
    assert _query(place, query.format(first)) == [(1000, 999, "x")]
    positions = "SELECT position FROM lake.main._pgoutput_fast_positions AT (VERSION => {})"
    assert [_query(place, positions.format(first + n)) for n in range(2)] == [[(1,)], [(2,)]]


@LAKE
@pytest.mark.parametrize("key", ["text and int8", None])
def test_earlier_versions_stay_until_they_are_removed(key: str | None, tmp_path: Path) -> None:
    """Another table of the lake changes meanwhile."""
    effects, table = RandomEffects(4, key), ducklake_table(tmp_path / "x.ducklake", "t")
    others, other = RandomEffects(5, "int8"), ducklake_table(tmp_path / "x.ducklake", "u")
    dice, models, removed = random.Random(3), dict[int, Model](), 0
    for position in range(1, 15):
        table.apply(effects.next(), position)
        version = table.version()
        assert version is not None
        models[version] = Model()
        models[version].rows, models[version].names = [*effects.model.rows], [*effects.model.names]
        other.apply(others.next(), position)
        if position % 5 == 0:
            keep = dice.randint(1, 6)
            removed += table.vacuum(keep)
            assert table.version() == version
            gone = {number for number in models if number <= version - keep}
            for number in gone:
                del models[number]
            # A version may be there as long as a snapshot has its rows.
            if gone - {max(gone)}:
                with pytest.raises(FileNotFoundError, match="has no version"):
                    table.read(min(gone))
            others.model.assert_equal(other)
    assert removed
    assert len(models) > 1
    for number, model in models.items():
        model.assert_equal(table, effects.compared, number)
    with pytest.raises(FileNotFoundError, match="has no version 1000000"):
        table.read(1_000_000)


@LAKE
def test_files_are_durable_before_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckLake itself leaves it to the system when they are."""
    synced, place = set[Path](), tmp_path / "x.ducklake"
    real = ducklake.fsync

    def fsync(path: Any) -> None:
        real(path)
        synced.add(Path(path))

    monkeypatch.setattr(ducklake, "fsync", fsync)
    table = numbered.load(ducklake_table(place, "t"))
    table.apply(numbered.effect(range(100), range(2000, 2100)), 2)
    files = {path for path in Path(f"{place}.files").rglob("*") if path.is_file()}
    assert any(path.name.endswith("-delete.parquet") for path in files)
    assert files | {path.parent for path in files} == synced
    table.vacuum(3)
    files = {path for path in Path(f"{place}.files").rglob("*") if path.is_file()}
    assert files < synced
    # An unfinished commit.
    (next(iter(files)).parent / "ducklake-0.parquet").touch()
    assert table.vacuum(3) == 1


@LAKE
def test_a_lake_that_was_moved(loaded: DuckDBMerge, tmp_path: Path) -> None:
    loaded.apply(numbered.effect([5]), 2)
    (tmp_path / "below").rename(tmp_path / "it's [new] #1")
    moved = ducklake_table(tmp_path / "it's [new] #1" / "x.ducklake", 'or"ders', "Shop 1")
    moved.apply(numbered.effect([6]), 3)
    assert (moved.position(), moved.read().num_rows) == (3, 998)
    assert not (tmp_path / "below").exists()


@LAKE
@pytest.mark.parametrize("schema", ["current", "temp", "system", "memory", "ducklake", "a.b"])
def test_a_schema_with_the_name_of_a_database(tmp_path: Path, schema: str) -> None:
    place = tmp_path / "current.ducklake"
    table = numbered.load(ducklake_table(place, "t", schema), 100)
    table.apply(numbered.effect([5], [6, 2000]), 2)
    other = ducklake_table(place, "t")
    other.apply(numbered.effect([], [1]), 1)
    assert (table.position(), table.read().num_rows) == (2, 100)
    assert (other.position(), other.read().num_rows) == (1, 1)


@LAKE
@pytest.mark.parametrize("key", [("id",), ()])
def test_zeros_lose_their_signs(key: tuple[str, ...], tmp_path: Path) -> None:
    """DuckDB 1.5 has one of both in a file. Rows without a key are found all the same."""
    schema = current_schema(pa.schema({"id": pa.int64(), "x": pa.float64(), "l": pa.list_(pa.float64())}))
    made = [{"id": n, "x": zero, "l": [zero]} for n, zero in enumerate([0.0, -0.0] * 20)]
    rows, table = pa.Table.from_pylist(made, schema=schema), ducklake_table(tmp_path / "x.ducklake", "t")
    table.apply(Effect(key, False, rows.slice(0, 0).select(key or schema.names), rows), 1)
    gone = rows.slice(10, 20).select(key or schema.names)
    table.apply(Effect(key, False, gone, rows.slice(0, 0)), 2)
    assert numbered.ids(table) == [*range(10), *range(30, 40)]
    assert set(table.read().column("x").to_pylist()) == {0.0}


@LAKE
@pytest.mark.parametrize("name", ["row_id", "Begin_Snapshot"])
def test_names_that_ducklake_needs_itself(loaded: DuckDBMerge, name: str, tmp_path: Path) -> None:
    schema = current_schema(pa.schema({"id": pa.int64(), name: pa.string()}))
    rows = pa.Table.from_pylist([{"id": 1, name: "x"}], schema=schema)
    for table in (loaded, ducklake_table(tmp_path / "other.ducklake", "t")):
        with pytest.raises(ValueError, match=f"cannot have the column '{name}', which DuckLake reserves"):
            table.apply(Effect(("id",), False, EMPTY, rows), 2)
    assert (loaded.position(), loaded.read().num_rows) == (1, 1000)


@LAKE
def test_tables_of_others_and_files_that_are_no_lake(loaded: DuckDBMerge, tmp_path: Path) -> None:
    with loaded.table.opened() as connection:
        connection.execute("CREATE TABLE theirs (id INT)")
    with pytest.raises(ValueError, match="is not a table of a mirror: use another name"):
        ducklake_table(tmp_path / "below" / "x.ducklake", "Theirs").position()
    (tmp_path / "x").write_bytes(b"no database" * 1000)
    with pytest.raises(OSError, match="cannot be opened"):
        ducklake_table(tmp_path / "x", "t").position()


@LAKE
def test_another_process_has_the_catalog_open(
    loaded: DuckDBMerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "below" / "x.ducklake")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    with monkeypatch.context() as patch:
        patch.setattr(duckdb, "_SECONDS", 0.2)
        with pytest.raises(RuntimeError, match=r"another process has .* open: close it there"):
            loaded.apply(numbered.effect([5]), 2)
    process.communicate(b"\n", timeout=240)
    loaded.apply(numbered.effect([5]), 2)
    assert loaded.read().num_rows == 999


def test_an_extension_for_another_duckdb(tmp_path: Path) -> None:
    """In a process of its own: an extension that this one has imported would hide the other."""
    directory = tmp_path / "duckdb_extension_ducklake" / "extensions" / "v0.1.2"
    directory.mkdir(parents=True)
    (directory / "ducklake.duckdb_extension").touch()
    (directory.parents[1] / "__init__.py").touch()
    code = (
        "from pgoutput_fast.tables.ducklake import DuckLakeTarget; DuckLakeTarget.check_package('a mirror')"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: the extension ducklake is for duckdb 0.1.2, and not for {engine.__version__}: "
        "pip install 'pgoutput_fast[ducklake]', without the extra duckdb"
    )
