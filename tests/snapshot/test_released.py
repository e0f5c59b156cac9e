"""Ranges that are read without their snapshot: each has at least what the snapshot has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast.snapshot import Snapshot, SnapshotError
from pgoutput_fast.snapshot.ranges import ReadRange
from pgoutput_fast.snapshot.read import SnapshotReader
from support import pg


def test_later_commits_are_there(database: pg.Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t", "INSERT INTO t VALUES (1)"
    )
    found: list[pa.RecordBatch] = []

    def work(reader: SnapshotReader, each: ReadRange) -> None:
        reader.read(snapshot.tables["public.t"], each, found.append)

    with Snapshot(database.dsn, ["p"]) as snapshot:
        database.execute("INSERT INTO t VALUES (2)")
        snapshot.release()
        database.execute("DELETE FROM t WHERE id = 1")
        snapshot.read_each(snapshot.ranges("public.t"), work)
        assert [batch.column("id").to_pylist() for batch in found] == [[2]]
        with pytest.raises(SnapshotError, match="is gone"):
            snapshot.release()
