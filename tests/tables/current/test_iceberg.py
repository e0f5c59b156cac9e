"""What is special about current tables in the format of Iceberg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from pgoutput_fast.merge.effect.effect import Effect, current_schema
from pgoutput_fast.merge.effect.fill import Fill
from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import ConflictError
from support import numbered, pg
from support.current_tables import iceberg_table
from support.paths import DOCS
from support.readers import rows_of_iceberg


def _made(place: Path) -> LocalMerge:
    return numbered.load(iceberg_table(place, "public.orders", file_bytes=100), 300)


def _catalog(place: Path) -> Any:
    return load_catalog("pgoutput_fast", type="sql", uri=f"sqlite:///{place}/_catalog.db")


def test_the_page_reads_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "current-tables.md").read_text()
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "load_catalog" in each]
    _made(tmp_path / "lake" / "current").apply(numbered.effect([7], [1000]), 2)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(code, found)
    assert sorted(found["rows"]["id"].to_pylist()) == [*(n for n in range(300) if n != 7), 1000]


def test_a_commit_is_one_snapshot_that_replaces_the_files_with_these_keys(tmp_path: Path) -> None:
    table = _made(tmp_path)
    before = table.table.now()
    assert before is not None
    table.apply(numbered.effect([150], [151, 1000]), 2)
    after = table.table.now()
    assert after is not None
    names = [{file.name for file in each.files} for each in (before, after)]
    assert len(names[0]) == 3
    assert len(names[0] - names[1]) == 1
    snapshots = _catalog(tmp_path).load_table("public.orders").metadata.snapshots
    assert [(each.sequence_number, each.summary["pgoutput-fast.mirror-position"]) for each in snapshots] == [
        (before.number, "1"),
        (after.number, "2"),
    ]
    assert table.read(before.number).num_rows == 300


def test_a_late_commit_after_an_interrupt(
    servers: Mapping[int, pg.Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of a catalog makes it after its client has ended. Its files are there."""
    database = pg.Database(servers[max(servers)])
    uri = f"postgresql+psycopg2://postgres@127.0.0.1:{database.server.port}/{database.name}"
    options = TableOptions(iceberg_catalog={"type": "sql", "uri": uri})
    late: list[Any] = []

    def interrupted(*arguments: Any) -> Any:
        late.append(arguments)
        raise KeyboardInterrupt

    def opened() -> Any:
        return open_current_table("iceberg", open_store(tmp_path), "public.orders", options)

    try:
        table = opened()
        with monkeypatch.context() as patch:
            patch.setattr(SqlCatalog, "commit_table", interrupted)
            with pytest.raises(KeyboardInterrupt):
                numbered.load(table, 10)
        SqlCatalog.commit_table(*late.pop())
        assert numbered.ids(opened()) == list(range(10))
    finally:
        database.drop()


def test_a_commit_upon_another_one_does_nothing(tmp_path: Path) -> None:
    table, other = _made(tmp_path), iceberg_table(tmp_path, "public.orders")
    before = table.table.now()
    other.apply(numbered.effect([], [1000]), 2)
    with pytest.raises(ConflictError):
        table.table.commit(before, numbered.SCHEMA, 3, [], None, {})
    assert (table.position(), table.read().num_rows) == (2, 301)
    table.apply(numbered.effect([1000], []), 3)
    assert (other.position(), other.read().num_rows) == (3, 300)


def test_old_snapshots_and_their_files_are_removed(tmp_path: Path) -> None:
    table = _made(tmp_path)
    for n in range(5):
        table.apply(numbered.effect([n], []), n + 2)
    now = table.version()
    assert now is not None
    assert table.vacuum(2) > 0
    assert table.read(now - 1).num_rows == 296
    with pytest.raises(FileNotFoundError, match=f"has no version {now - 2}"):
        table.read(now - 2)
    assert table.read().num_rows == 295
    assert table.vacuum(2) == 0
    names = [each.name for each in (tmp_path / "public.orders" / "metadata").glob("*.avro")]
    assert len(names) < 2 * 2 + 4  # two lists, and the manifests in them
    assert _catalog(tmp_path).load_table("public.orders").scan().to_arrow().num_rows == 295


def test_what_something_else_changed_is_refused(tmp_path: Path) -> None:
    table = _made(tmp_path)
    _catalog(tmp_path).load_table("public.orders").delete("id = 3")
    with pytest.raises(ValueError, match="is not a table of a mirror, or something else changed it"):
        table.position()


def test_manifests_do_not_grow_with_the_number_of_commits(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path, "public.orders")
    table.apply(numbered.effect([], list(range(100))), 1)
    for n in range(12):
        table.apply(numbered.effect([n], [n + 20]), n + 2)
    found = _catalog(tmp_path).load_table("public.orders")
    (file,) = table.table.now().files if table.table.now() else ()
    assert file.rows == 88
    # One has the file, the other says which one it replaced.
    assert len(found.current_snapshot().manifests(found.io)) == 2


@pytest.mark.parametrize("days", [-735_000, 4_000_000], ids=["before Christ", "behind 9999"])
def test_dates_that_python_does_not_have(tmp_path: Path, days: int) -> None:
    """As the key, too: then the bounds of files do not help to find a row."""
    schema = current_schema(pa.schema([("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))]))

    def rows(first: int) -> pa.Table:
        kinds = [(pa.date32(), pa.int32(), 1), (pa.timestamp("us", "UTC"), pa.int64(), 86_400_000_000)]
        columns = [
            pa.array([(first + n) * unit for n in range(3)], raw).cast(kind) for kind, raw, unit in kinds
        ]
        return pa.table([*columns, pa.array([1] * 3), pa.nulls(3, schema.field(3).type)], schema)

    table = iceberg_table(tmp_path, "public.days", file_bytes=100)
    table.replace(rows(0).to_batches(), schema, 1)
    table.apply(Effect(("day",), False, rows(0).select(["day"]).slice(0, 1), rows(days)), 2)
    table.apply(Effect(("day",), False, rows(days).select(["day"]).slice(0, 1), rows(100)), 3)
    expected = pa.concat_tables([rows(0).slice(1), rows(days).slice(1), rows(100)])
    found = iceberg_table(tmp_path, "public.days").read()
    order = [("day", "ascending")]
    assert found.select(["day", "at"]).sort_by(order).equals(expected.select(["day", "at"]).sort_by(order))


@pytest.mark.parametrize("merge", ["on_write", "on_read"])
def test_columns_that_come_and_are_renamed_in_one_commit(tmp_path: Path, merge: Any) -> None:
    """The files are written again for the values of new columns, so the commit replaces all of them."""
    table = numbered.load(iceberg_table(tmp_path, "public.orders", merge=merge), 10)
    none = pa.table({})
    parts = [
        Fill(pa.table({"new": ["same"]}), none),
        Fill(none, none, renamed={"former": "text"}),
        Fill(pa.table({"text": ["again"]}), none),
        Fill(none, none, renamed={"key": "id"}),
    ]
    table.apply_parts(parts, 2)
    expected = [{"key": n, "former": "x", "new": "same", "text": "again"} for n in range(10)]
    for rows in (table.read(), rows_of_iceberg(tmp_path, "public.orders")[0]):
        assert rows.select([*expected[0]]).sort_by("key").to_pylist() == expected
