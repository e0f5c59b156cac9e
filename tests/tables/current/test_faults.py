"""Current tables whose process is killed, and whose disk is full: they have the rows of one position, and go on.

`PGOUTPUT_FAST_KILLS` says how often the tests of random moments kill; `make soak` does so many times.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.storage.stores import is_unfinished
from pgoutput_fast.tables.table import Table
from support.current_tables import KINDS, RandomEffects, open_table
from support.disks import small_disk
from support.ducklake import lakes
from support.forms import and_exhaustive, and_slow
from support.paths import TESTS

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "2"))
_FILES, _STORES, _DUCKDB = (
    f"pgoutput_fast.{name}" for name in ("tables.files", "storage.stores", "tables.duckdb")
)
_LOCAL, _ENTRIES = "pgoutput_fast.merge.local", "pgoutput_fast.tables.delta.entries"
_ICEBERG, _COMPACTION = "pgoutput_fast.tables.iceberg.table", "pgoutput_fast.merge.compaction"
_UNITS = "pgoutput_fast.merge.units"
# A negative number kills behind the call.
STEPS = [
    ("delta", "int8", (_LOCAL, "merge_effect", 4)),
    ("delta", None, ("os", "fsync", 12)),
    ("delta", "int8", (_STORES, "publish", 9)),
    ("delta", "int8", (_FILES, "_OpenFile.close", -5)),
    ("delta", "int8", ("deltalake.table", "DeltaTable.create_write_transaction", -5)),
    ("duckdb", "int8", ("pgoutput_fast.merge.duckdb", "DuckDBMerge._change", -4)),
    ("marked", None, (_ENTRIES, "write_vectors", -2)),
    ("marked", "int8", (_COMPACTION, "compact", 1)),
]  # fmt: skip
SLOW_STEPS = [
    ("delta", "text", ("os", "fsync", 13)),
    ("delta", "int8", (_STORES, "publish", -9)),
    ("delta", None, (_LOCAL, "commit", 5)),
    ("delta", "text", ("deltalake.table", "DeltaTable.create_write_transaction", 5)),
    ("iceberg", "int8", (_FILES, "_OpenFile.close", -5)),
    ("marked", None, (_ENTRIES, "write_vectors", 2)),
    ("marked", None, (_ENTRIES, "write_entry", -1)),
    ("marked", None, (_ENTRIES, "write_entry", 3)),
    ("marked", None, (_ENTRIES, "LogEntries._checkpoint", 1)),
    ("marked", None, (_ENTRIES, "LogEntries._checkpoint", -1)),
    ("marked", "int8", (_COMPACTION, "commit", 2)),
    ("marked", "int8", (_COMPACTION, "compact", -2)),
    ("marked iceberg", "int8", (_COMPACTION, "compact", 1)),
    ("marked", None, ("os", "fsync", 14)),
    ("marked", None, (_STORES, "publish", -4)),
    ("marked iceberg", None, (_ICEBERG, "write_deletes", -2)),
    ("marked iceberg", None, ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", 5)),
    ("marked iceberg", None, ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", -5)),
]  # fmt: skip
MORE_STEPS = [
    ("iceberg", "text", ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", 5)),
    ("iceberg", None, ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", -5)),
    ("duckdb", None, (_DUCKDB, "DuckDBCurrent.insert", 5)),
]  # fmt: skip
# While another thread writes files anew: when it has written them, before and after their keys, at their commit, and
# before the keys of the old ones go. Some of their rows are marked then.
BESIDE_STEPS = [
    ("marked", (_UNITS, "JoinUnit.run", -2)),
    ("marked", (_COMPACTION, "compact", -2)),
]
SLOW_BESIDE_STEPS = [
    *((kind, (_UNITS, "JoinUnit.run", 1)) for kind in ("marked", "marked iceberg")),
    *((kind, (_COMPACTION, "compact", 2)) for kind in ("marked", "marked iceberg")),
    *((kind, (_COMPACTION, "commit", sign)) for kind in ("marked", "marked iceberg") for sign in (-2, 3)),
    ("marked iceberg", (_COMPACTION, "compact", -3)),
    ("marked", ("pgoutput_fast.merge.key_files", "_write", 2)),
    ("marked", ("pgoutput_fast.merge.key_files", "_write", -2)),
]
LAKE_STEPS = [
    ("int8", ("pgoutput_fast.merge.duckdb", "DuckDBMerge._change", -4)),
    (None, (_DUCKDB, "DuckDBCurrent.insert", 5)),
    ("int8", ("pgoutput_fast.tables.ducklake", "fsync", -3)),
]
COUNT = 12


def _start(
    kind: str, place: Path, seed: int, key: str | None, count: int, **more: Any
) -> subprocess.Popen[str]:
    job = {"kind": kind, "place": str(place), "seed": seed, "key": key, "count": count, **more}
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    return subprocess.Popen(
        [sys.executable, "-m", "support.current_driver", json.dumps(job)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(TESTS)])},
    )


def _assert_whole(kind: str, place: Path, seed: int, key: str | None, least: int) -> int:
    """The table has the rows of its position, which it returns."""
    table = open_table(kind, place)
    position = table.position() or 0
    assert position >= least
    effects = RandomEffects(seed, key)
    for _ in range(position):
        effects.next()
    if position:
        effects.model.assert_equal(table, effects.compared)
    return int(position)


def _finish(kind: str, place: Path, seed: int, key: str | None, count: int) -> None:
    """Applies all effects again. Then the table has all of them once, and no file is left over."""
    effects, table = RandomEffects(seed, key), open_table(kind, place)
    for position in range(1, count + 1):
        table.apply(effects.next(), position)
    effects.model.assert_equal(table, effects.compared)
    if kind == "duckdb":
        return
    table.vacuum()
    if kind == "ducklake":
        return effects.model.assert_equal(table, effects.compared)
    directory = place / "public.orders"
    there = {each.name for each in directory.iterdir() if each.is_file()}
    there |= {f"_vectors/{each.name}" for each in directory.glob("_vectors/*")}
    now = table.table.now()
    assert there == table.table._table.needed(now)
    assert not any(is_unfinished(each.name) for each in directory.rglob("*"))
    effects.model.assert_equal(table, effects.compared)


@pytest.mark.parametrize(
    ("kind", "key", "kill"),
    and_exhaustive(and_slow(STEPS, SLOW_STEPS), MORE_STEPS) + lakes(*LAKE_STEPS),
    ids=str,
)
def test_killed_at_a_step(kind: str, key: str | None, kill: Any, tmp_path: Path) -> None:
    seed = 1 if kill[1] == "LogEntries._checkpoint" else 3  # with this, the tenth commit marks rows
    process = _start(kind, tmp_path, seed, key, COUNT, kill=kill)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == -9
    said = [int(line) for line in printed.split()[1:]]
    assert len(said) < COUNT
    position = _assert_whole(kind, tmp_path, seed, key, len(said))
    assert position <= len(said) + 1
    _finish(kind, tmp_path, seed, key, COUNT)


@pytest.mark.parametrize(("kind", "kill"), and_slow(BESIDE_STEPS, SLOW_BESIDE_STEPS), ids=str)
def test_killed_while_another_thread_writes_files_anew(kind: str, kill: Any, tmp_path: Path) -> None:
    process = _start(kind, tmp_path, 4, "int8", 25, kill=kill, settled=False)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == -9
    said = [int(line) for line in printed.split()[1:]]
    position = _assert_whole(kind, tmp_path, 4, "int8", len(said))
    assert position <= len(said) + 1
    _finish(kind, tmp_path, 4, "int8", 25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=pytest.mark.exhaustive
            if kind in ("iceberg", "duckdb", "marked iceberg") and KILLS < 4
            else [],
        )
        for kind in [*KINDS, "marked", "marked iceberg"]
    ]
    + lakes(()),
)
def test_killed_at_random_moments(kind: str, tmp_path: Path) -> None:
    dice, count = random.Random(KILLS), 20 * KILLS
    for n in range(KILLS):
        process = _start(kind, tmp_path, 5, "int8", count, settled=bool(n % 2))
        assert process.stdout is not None
        with process.stdout as lines:
            assert next(lines) == "ready\n"
            told = 0
            for _ in range(dice.randrange(count // KILLS * n, count // KILLS * (n + 1)) + 1):
                told = int(next(lines))
            time.sleep(dice.random() * 0.02)
            process.kill()
        process.wait(240)
        _assert_whole(kind, tmp_path, 5, "int8", told)
    _finish(kind, tmp_path, 5, "int8", count)


# ---- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    # The catalog of a lake alone has 3 MB.
    with small_disk(tmp_path, 12) as place:
        yield place


def _wide(first: int, rows: int) -> Effect:
    noise = random.Random(first)
    schema = current_schema(pa.schema({"id": pa.int64(), "text": pa.string()}))
    made = [{"id": first + n, "text": noise.randbytes(500).hex()} for n in range(rows)]
    keys = pa.schema([schema.field("id")])
    return Effect(("id",), False, keys.empty_table(), pa.Table.from_pylist(made, schema=schema))


@pytest.mark.parametrize("kind", KINDS + lakes(()))
def test_a_disk_that_is_full(kind: str, disk: Path) -> None:
    table = open_table(kind, disk / "lake", file_bytes=500_000)
    table.apply(_wide(0, 1_000), 1)
    before, version = table.read().sort_by("id"), table.version()
    filler = disk / "filler"
    with filler.open("wb") as file:
        stats = os.statvfs(disk)
        file.write(b"x" * (stats.f_bavail * stats.f_frsize - 300_000))
    used = sorted(each for each in disk.rglob("*.parquet"))
    with pytest.raises(OSError, match=r"(?s).+") as caught:
        table.apply(_wide(500, 3_000), 2)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert "space" in said
    for each in (table, open_table(kind, disk / "lake")):
        assert (each.position(), each.version()) == (1, version)
        assert each.read().sort_by("id").equals(before)
    filler.unlink()
    if kind == "ducklake":
        table.vacuum()
    assert sorted(disk.rglob("*.parquet")) == used
    table.apply(_wide(500, 3_000), 2)
    assert table.read().num_rows == 3_500
    assert table.position() == 2


@pytest.mark.parametrize("kind", and_slow(["delta", "marked"], ["marked iceberg"]))
def test_a_disk_that_is_full_at_the_commit(kind: str, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of rows are there already."""
    table, filler = open_table(kind, disk / "lake"), disk / "filler"
    table.apply(_wide(0, 100), 1)
    files = set(disk.rglob("*.parquet"))
    commit = Table.commit

    def filled(*arguments: Any, **more: Any) -> None:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        commit(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", filled)
        with pytest.raises(OSError, match=r"(?s).+") as caught:
            table.apply(_wide(90, 100), 2)
    assert "There is no space for files of tables" in "".join(getattr(caught.value, "__notes__", ()))
    filler.unlink()
    assert set(disk.rglob("*.parquet")) == files
    assert not list(disk.rglob("*deletion_vector_*"))
    for each in (table, open_table(kind, disk / "lake")):
        assert (each.position(), each.read().num_rows) == (1, 100)
    table.apply(_wide(90, 100), 2)
    assert (table.position(), table.read().num_rows) == (2, 190)
    assert any(file.deleted for file in table.table.now().files) == (kind != "delta")
