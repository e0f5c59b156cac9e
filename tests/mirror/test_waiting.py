"""Changes that wait in memory or in a file are the same, in the same order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_fast.mirror.follow import waiting
from pgoutput_fast.mirror.follow.waiting import PendingChanges


def _changes(lsn: int, *ids: int, **more: pa.Array) -> pa.Table:
    return pa.table({"_commit_lsn": pa.array([lsn] * len(ids), pa.int64()), "id": pa.array(ids), **more})


def test_in_memory_and_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_PART_BYTES", 100)
    held, moved = PendingChanges(), PendingChanges()
    for n in range(12):
        # A column comes in between.
        rows = _changes(100 + n, n, n + 1, n + 2, **({"new": pa.array(["x"] * 3)} if n > 7 else {}))
        held.add(rows)
        moved.add(rows)
        if n in (4, 9):
            moved.to_file(tmp_path)
            assert moved.in_memory == (0, 0)
    assert (moved.num_rows, moved.nbytes, moved.last) == (36, held.nbytes, 111)
    assert moved.in_memory == _held(2)
    assert (held.in_file, moved.in_file) == (False, True)
    (whole,) = held.parts()
    for _ in range(2):  # an effect may be computed again
        parts = list(moved.parts())
        assert len(parts) > 3
        assert pa.concat_tables(parts, promote_options="default").equals(whole)


def test_what_no_effect_depends_on_does_not_wait() -> None:
    held = PendingChanges()
    held.add(_changes(1, 5, _seq=pa.array([7]), _xid=pa.array([9]), _lsn=pa.array([3]), xid=pa.array([2])))
    (rows,) = held.parts()
    assert rows.column_names == ["_commit_lsn", "id", "_seq", "xid"]


def _held(tables: int) -> tuple[int, int]:
    rows = _changes(0, 1, 2, 3, new=pa.array(["x"] * 3))
    return 3 * tables, rows.nbytes * tables
