"""`emit=upserts` of the data source: rows that an upsert by key takes, such as AUTO CDC of Spark's pipelines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.spark.tasks.upserts import Upserts
from pyspark_pgoutput import DefaultSource
from support import pg

# Values that are stored outside of the row, so an update that leaves one as it is does not send it.
LARGE = "(SELECT string_agg(md5((i * {})::text), '') FROM generate_series(1, 300) i)"


@pytest.fixture
def slot(database: pg.Database) -> Iterator[pg.Slot]:
    """A slot over two tables: old rows have the key only, or all columns."""
    database.execute(
        "CREATE TABLE by_key (a int, b text, note text, PRIMARY KEY (b, a))",
        "CREATE TABLE by_row (id int PRIMARY KEY, price float8, note text, other int)",
        "ALTER TABLE by_row REPLICA IDENTITY FULL, ALTER note SET STORAGE EXTERNAL",
        "ALTER TABLE by_key ALTER note SET STORAGE EXTERNAL",
    )
    with database.slot("FOR TABLE by_key, by_row") as slot:
        yield slot
    database.execute("DROP TABLE by_key, by_row")


def _stored(slot: pg.Slot, directory: Path) -> Path:
    """The messages of the slot as a segment."""
    payloads = slot.peek()
    tagged, state = pgo.tag([data for _, data in payloads], lsn=[lsn for lsn, _ in payloads])
    directory.mkdir(exist_ok=True)
    write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    return directory


def _rows(path: Path, table: str, **options: str) -> list[dict[str, Any]]:
    """What Spark gets from the process that plans, and from tasks, in the order of `sequence_by`."""
    given = CaseInsensitiveDict({"path": str(path), "table": table, "emit": "upserts", **options})
    source = DefaultSource(given)
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for each in reader.read(part) for row in each.to_pylist()]
    return sorted(rows, key=lambda row: (row["_commit_lsn"], row["_seq"]))


def _applied(rows: list[dict[str, Any]], keys: list[str]) -> list[tuple[Any, ...]]:
    """The rows that an upsert by key leaves. No key comes twice with the same sequence."""
    there: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    sequences = [(row["_commit_lsn"], row["_seq"], *(row[key] for key in keys)) for row in rows]
    assert len(set(sequences)) == len(sequences)
    for row in rows:
        key = tuple(row[each] for each in keys)
        if row["_change_type"] == "delete":
            there.pop(key, None)
        else:
            assert row["_change_type"] in ("insert", "update_postimage")
            assert row["_unchanged"] is None
            there[key] = tuple(value for name, value in row.items() if not name.startswith("_"))
    return sorted(there.values())


def test_upserts_and_deletes_leave_the_rows_of_the_server(slot: pg.Slot, tmp_path: Path) -> None:
    rng = random.Random(5)
    for n in range(20):
        slot.execute(
            f"INSERT INTO by_key VALUES ({n}, 'x', {LARGE.format(n)})",
            f"INSERT INTO by_row VALUES ({n}, {'-' if n % 2 else ''}{n % 3}, {LARGE.format(n)}, 1)",
        )
    for _ in range(60):
        n, m = rng.randrange(20), rng.randrange(20, 90)
        slot.execute(
            rng.choice(
                [
                    f"UPDATE by_key SET note = '{m}' WHERE a = {n}",
                    f"UPDATE by_key SET b = 'y{m}', note = note || '.' WHERE a = {n}",
                    f"UPDATE by_row SET other = {m}, price = -price WHERE id = {n}",
                    f"UPDATE by_row SET id = {m} WHERE id = {n} AND NOT EXISTS (SELECT FROM by_row WHERE id = {m})",
                    f"DELETE FROM by_row WHERE id = {m}",
                    f"DELETE FROM by_key WHERE a = {n} AND b <> 'x'",
                ]
            )
        )
    slot.execute("BEGIN", "UPDATE by_row SET id = id + 1000", "DELETE FROM by_key", "ROLLBACK")
    slot.execute("BEGIN", "UPDATE by_row SET id = id + 1000", "UPDATE by_row SET id = id - 1000", "COMMIT")
    directory = _stored(slot, tmp_path / "segments")
    by_key = _rows(directory, "public.by_key")
    assert _applied(by_key, ["b", "a"]) == sorted(slot.execute("SELECT * FROM by_key"))
    by_row = _rows(directory, "public.by_row", keys="id")
    assert _applied(by_row, ["id"]) == sorted(slot.execute("SELECT * FROM by_row"))
    # An update that leaves the key as it is, is one row.
    kinds = [row["_change_type"] for row in by_row]
    assert kinds.count("update_postimage") > kinds.count("delete") > 0


def test_the_rows_of_an_update_may_come_in_two_batches(slot: pg.Slot) -> None:
    slot.execute(
        f"INSERT INTO by_row VALUES (1, 0, {LARGE.format(1)}, 1)",
        "UPDATE by_row SET other = 2",
        "UPDATE by_row SET id = 7",
        "DELETE FROM by_row",
    )
    decoded = pgo.decode([data for _, data in slot.peek()], options=pgo.Options(transactions="committed"))
    rows = decoded.table("public.by_row").combine_chunks()
    whole = rows.to_batches()
    task = Upserts("public.by_row", ("id",), "_")
    (expected,) = [pa.Table.from_batches(task(whole))]
    assert expected["id"].to_pylist() == [1, 1, 1, 7, 7]
    assert expected["_change_type"].to_pylist() == [
        "insert", "update_postimage", "delete", "update_postimage", "delete"
    ]  # fmt: skip
    assert len(set(expected["note"].to_pylist())) == 1
    assert pa.Table.from_batches(task(rows.to_batches(max_chunksize=1))) == expected


def test_a_truncate_is_named_with_where_to_begin_again(
    database: pg.Database, slot: pg.Slot, tmp_path: Path
) -> None:
    if database.version < 11:
        pytest.skip("PostgreSQL 10 does not send a truncate")
    slot.execute(
        "INSERT INTO by_row VALUES (1, 0, 'a', 1)",
        "BEGIN",
        "INSERT INTO by_row VALUES (2, 0, 'b', 1)",
        "TRUNCATE by_row",
        "INSERT INTO by_row VALUES (3, 0, 'c', 1)",
        "COMMIT",
        "INSERT INTO by_row VALUES (4, 0, 'd', 1)",
    )
    directory = _stored(slot, tmp_path / "segments")
    with pytest.raises(
        ValueError, match=r"message \d+, relation public\.by_row: the server truncated"
    ) as caught:
        _rows(directory, "public.by_row", keys="id")
    where = str(caught.value).rpartition("where = '")[2].rstrip("'")
    rows = _rows(directory, "public.by_row", keys="id", where=where)
    assert _applied(rows, ["id"]) == slot.execute("SELECT * FROM by_row ORDER BY id")


def test_an_unchanged_value_that_was_not_sent_is_named(slot: pg.Slot, tmp_path: Path) -> None:
    slot.execute(f"INSERT INTO by_key VALUES (1, 'x', {LARGE.format(1)})", "UPDATE by_key SET a = 2")
    directory = _stored(slot, tmp_path / "segments")
    with pytest.raises(ValueError, match=r"public\.by_key: the server did not send column 'note', because"):
        _rows(directory, "public.by_key")
    rows = _rows(directory, "public.by_key", columns="a,b", metadata="_change_type,_commit_lsn,_seq")
    assert [(row["_change_type"], row["a"]) for row in rows] == [
        ("insert", 1), ("delete", 1), ("update_postimage", 2)
    ]  # fmt: skip


def test_what_cannot_be_upserts(slot: pg.Slot, tmp_path: Path) -> None:
    slot.execute("INSERT INTO by_key VALUES (1, 'x', 'a')", "INSERT INTO by_row VALUES (1, 0, 'a', 1)")
    directory = _stored(slot, tmp_path / "segments")
    for table, options, message in (
        ("public.by_row", {}, "replica identity full, which does not tell the key: name the columns"),
        ("public.by_key", {"keys": "a,note"}, "old rows do not have column 'note' of the key"),
        ("public.by_key", {"columns": "a,note"}, "needs column 'b' of the key: do not leave it out"),
        ("public.by_key,public.by_row", {}, "gives the rows of one table"),
        ("public.by_key", {"transactions": "as_sent"}, "needs committed transactions"),
        ("public.by_key", {"on_error": "quarantine"}, "cannot leave changes out"),
        ("public.by_key", {"where": "_change_type = 'delete'"}, "needs all changes"),
        ("public.by_key", {"emit": "rows", "keys": "a"}, "option keys needs emit=upserts"),
        ("public.by_key", {"emit": "changes"}, "emit must be 'rows', 'upserts', 'files', not 'changes'"),
    ):
        with pytest.raises(ValueError, match=message):
            _rows(directory, table, **options)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [(1082, "infinity", "-infinity"), (23, None, "1")],
    ids=["Arrow has no such date", "an old row without it"],
)
def test_a_key_without_a_value_is_named(kind: int, old: str | None, new: str) -> None:
    """Otherwise rows with different keys would be one, and a delete would find none."""
    relation = RelationSpec(16384, "public", "t", (ColumnSpec("k", kind, key=True), ColumnSpec("n", 23)), "d")
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    wal += writer.change(relation, "update", key=[old, None], new=[new, "2"])
    wal += writer.commit(100, 108, 0)
    rows = pgo.decode(wal, options=pgo.Options(transactions="committed")).table("public.t")
    with pytest.raises(
        ValueError, match=r"message 2, relation public\.t: column 'k' of the key has no value"
    ):
        list(Upserts("public.t", ("k",), "_")(rows.to_batches()))
