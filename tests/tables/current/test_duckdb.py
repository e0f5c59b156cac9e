"""Current tables in a database of DuckDB: beside the tables of others, and other processes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb as engine
import pyarrow as pa
import pytest

from pgoutput_fast.merge.duckdb import DuckDBMerge
from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.tables import duckdb
from support import numbered
from support.capturing import wait_until
from support.current_tables import duckdb_table, ducklake_table
from support.ducklake import LAKE
from support.mirrors import Place, place
from support.paths import DOCS

__all__ = ["place"]


def _query(place: Path, query: str) -> list[Any]:
    with engine.connect(str(place)) as connection:
        return connection.execute(query).fetchall()


def _table(tmp_path: Path, kind: str = "duckdb") -> DuckDBMerge:
    made = {"duckdb": duckdb_table, "ducklake": ducklake_table}[kind]
    return made(tmp_path / "below" / f"x.{kind}", 'or"ders', "Shop 1")


@pytest.fixture
def loaded(tmp_path: Path) -> DuckDBMerge:
    return numbered.load(_table(tmp_path), batch_rows=10)


_BOTH = pytest.mark.parametrize("kind", ["duckdb", pytest.param("ducklake", marks=LAKE)])


def test_queries_see_the_rows(loaded: DuckDBMerge, tmp_path: Path) -> None:
    loaded.apply(numbered.effect([5], [6, 2000]), 2)
    place = tmp_path / "below" / "x.duckdb"
    assert _query(place, 'SELECT count(*), max(id), max(text) FROM "Shop 1"."or""ders"') == [
        (1000, 2000, "x")
    ]
    assert _query(place, "SELECT position, version FROM _pgoutput_fast_positions") == [(2, 1)]


@pytest.mark.unsanitized
def test_the_page_reads_the_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/current-tables.md."""
    page = (DOCS / "current-tables.md").read_text()
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "read_only" in each]
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1), (2)",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
    )
    place.run(format="duckdb")
    monkeypatch.chdir(place.target.parent)
    found: dict[str, Any] = {}
    exec(code, found)
    assert sorted(found["rows"]["id"].to_pylist()) == [1, 2]


def test_two_tables_of_a_file(loaded: DuckDBMerge, tmp_path: Path) -> None:
    other = duckdb_table(tmp_path / "below" / "x.duckdb", 'or"ders')
    assert other.position() is None
    other.apply(numbered.effect([], [1]), 2**63 + 5)
    assert (other.position(), other.version(), other.read().num_rows) == (2**63 + 5, 0, 1)
    assert (loaded.position(), loaded.version(), loaded.read().num_rows) == (1, 0, 1000)
    loaded.replace([], numbered.SCHEMA, 0)
    assert (loaded.position(), loaded.version(), loaded.read().num_rows) == (0, 1, 0)


@pytest.mark.parametrize("schema", ["current", "temp", "system", "memory", "a.b"])
def test_a_schema_with_the_name_of_a_database(tmp_path: Path, schema: str) -> None:
    """DuckDB names the database of a file after the file, and has others of its own."""
    place = tmp_path / "current.duckdb"
    table = numbered.load(duckdb_table(place, "t", schema), batch_rows=100)
    table.apply(numbered.effect([5], [6, 2000]), 2)
    other = duckdb_table(place, "t")
    other.apply(numbered.effect([], [1]), 1)
    assert (table.position(), table.read().num_rows) == (2, 1000)
    assert (other.position(), other.read().num_rows) == (1, 1)
    assert _query(place, f'SELECT count(*) FROM "current"."{schema}"."t"') == [(1000,)]


def test_an_error_is_not_taken_for_a_full_disk(loaded: DuckDBMerge) -> None:
    """DuckDB refuses all that comes behind an error in a transaction."""
    before = loaded.read()

    def fail() -> None:
        with (
            loaded.table.opened() as connection,
            loaded.table.transaction(connection, loaded.table.state_in(connection), 5),
            duckdb._view(connection, before),
        ):
            connection.execute("SELECT nothing")

    with pytest.raises(engine.BinderException, match="nothing"):
        fail()
    assert loaded.read() == before


@_BOTH
def test_wider_types_and_new_columns_in_one_effect(kind: str, tmp_path: Path) -> None:
    loaded = _table(tmp_path, kind)
    narrow = current_schema(pa.schema({"id": pa.int16(), "n": pa.list_(pa.int16())}))
    wide = current_schema(pa.schema({"id": pa.int64(), "n": pa.list_(pa.int64()), 'a"b.c': pa.float64()}))
    loaded.replace(
        pa.Table.from_pylist([{"id": 1, "n": [1]}, {"id": 2}], schema=narrow).to_batches(), narrow, 1
    )
    before = loaded.version()
    rows = pa.Table.from_pylist([{"id": 2, "n": [2**40], 'a"b.c': 0.5}, {"id": 2**40}], schema=wide)
    loaded.apply(Effect(("id",), False, pa.table({"id": pa.array([], pa.int64())}), rows), 2)
    there = {row["id"]: (row["n"], row['a"b.c']) for row in loaded.read().to_pylist()}
    assert there == {1: ([1], None), 2: ([2**40], 0.5), 2**40: (None, None)}
    assert loaded.schema().field("n").type == pa.list_(pa.field("element", pa.int64()))
    if kind == "ducklake":
        assert loaded.read(before).schema.field("id").type == pa.int16()


def test_rows_without_a_key_that_are_not_there(loaded: DuckDBMerge) -> None:
    gone = numbered.rows([1, 1]).drop_columns(["_commit_lsn"])
    with pytest.raises(ValueError, match="lacks rows that changes remove"):
        loaded.apply(Effect((), False, gone, numbered.rows([7])), 2)
    assert (loaded.position(), loaded.read().num_rows) == (1, 1000)


def test_rows_without_a_column_that_duckdb_compares_as_we_do(tmp_path: Path) -> None:
    schema = current_schema(pa.schema({"price": pa.float64(), "list": pa.list_(pa.int32())}))
    made = [{"price": each, "list": [1]} for each in (0.0, -0.0, float("nan"), float("nan"), 1.5)]
    rows, table = pa.Table.from_pylist(made, schema=schema), duckdb_table(tmp_path / "x.duckdb", "t")
    table.apply(Effect((), False, rows.slice(0, 0), rows), 1)
    table.apply(Effect((), False, rows.slice(1, 2), rows.slice(0, 0)), 2)
    assert sorted(map(repr, table.read().column("price").to_pylist())) == ["0.0", "1.5", "nan"]


@_BOTH
def test_a_reader_in_another_thread(kind: str, tmp_path: Path) -> None:
    """Each position has its rows, and neither disturbs the other, whoever closes the file last."""
    loaded = numbered.load(_table(tmp_path, kind), batch_rows=100)
    stop, failed, seen = threading.Event(), [], set()

    def read() -> None:
        reader = _table(tmp_path, kind)
        try:
            while not stop.is_set():
                held = reader.open()
                rows = sum(piece.num_rows for piece in held.pieces(["id"]))
                assert rows == 999 + held.position
                seen.add(held.position)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for n in range(15):
            loaded.apply(numbered.effect([], [2000 + n]), 2 + n)
        wait_until(lambda: failed or seen)
    finally:
        stop.set()
        thread.join()
    assert failed == []


def test_only_the_version_of_now_can_be_read(loaded: DuckDBMerge) -> None:
    loaded.apply(numbered.effect([5]), 2)
    assert loaded.read(1).num_rows == 999
    with pytest.raises(ValueError, match="has only its current version, 1"):
        loaded.read(0)


def test_tables_of_others_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "x.duckdb"
    _query(place, "CREATE TABLE Orders (id INT)")
    table = duckdb_table(place, "orders")
    for call in (
        table.position,
        lambda: table.replace([], numbered.SCHEMA, 1),
        lambda: table.apply(numbered.effect(), 1),
    ):
        with pytest.raises(ValueError, match="is not a table of a mirror: use another name"):
            call()
    with pytest.raises(ValueError, match="tables of this format ignore case"):
        duckdb_table(place, "t").replace([], current_schema(pa.schema({"a": pa.int32(), "A": pa.int32()})), 1)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no database" * 1000)
    with pytest.raises(OSError, match="cannot be opened as a database of DuckDB"):
        duckdb_table(tmp_path / "x", "t").position()


@_BOTH
def test_another_process_has_the_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A call waits for it."""
    loaded = numbered.load(_table(tmp_path, kind))
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "below" / f"x.{kind}")],
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
