"""The changes between ranges of a load that were read in several snapshots, without the memory for all of their rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.merge.effect.effect import current_schema
from pgoutput_fast.mirror.load.changed import apply_changes
from support.changes import Changes
from support.current_tables import delta_table

_COLUMNS = pa.schema({"id": pa.int32(), "n": pa.int32(), "big": pa.string()})
_PARTS, _ROWS, _LONG = 8, 50, 100_000


class _History:
    """A history with updates of rows whose long values were not sent, in several parts."""

    def __init__(self) -> None:
        self._parts = []
        made = Changes(**{field.name: field.type for field in _COLUMNS})
        for k in range(_PARTS):
            made.rows = []
            made.commit()
            for id in range(k * _ROWS, (k + 1) * _ROWS):
                made.update(id=id, n=1, _unchanged=["big"])
            self._parts.append(made.table())
        self.schema = self._parts[0].schema

    def position(self) -> int:
        return 1000

    def between(self, after: int, through: int) -> _History:
        return self

    def read_parts(self, columns: list[str]) -> Iterator[pa.Table]:
        return (part.select(columns) for part in self._parts)


def _rows(ids: pa.Array, n: int) -> pa.Table:
    schema = current_schema(_COLUMNS)
    texts = pa.array([os.urandom(_LONG // 2).hex() for _ in ids])
    values = {"id": ids.cast(pa.int32()), "n": pa.repeat(pa.scalar(n, pa.int32()), len(ids)), "big": texts}
    values["_commit_lsn"] = pa.repeat(pa.scalar(1000), len(ids))
    return pa.table(
        [values.get(field.name, pa.nulls(len(ids), field.type)) for field in schema], schema=schema
    )


def _apply(
    table: CurrentTable,
    directory: Path,
    read: Callable[[pa.Table], pa.Table],
    release: Callable[[], object] | Any = False,
) -> None:
    history: Any = _History()
    apply_changes(
        table, iter([]), history, ("id",), _COLUMNS, (0, 1000, 1000), read, release, directory=directory
    )


def _open_in(directory: Path) -> int:
    links = (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith(f"{directory}/") for link in links if os.path.islink(link))


def test_rows_of_the_server_wait_in_a_file(tmp_path: Path) -> None:
    held: list[int] = []
    before = pa.total_allocated_bytes()

    def read(keys: pa.Table) -> pa.Table:
        # The last row of each part is not on the server any more.
        return _rows(keys["id"].combine_chunks()[:-1], 1)

    def release() -> None:
        held.append(pa.total_allocated_bytes() - before)
        assert _open_in(tmp_path) == 1

    table = delta_table(tmp_path / "lake", "t")
    _apply(table, tmp_path / "spill", read, release)
    assert held[0] < 2 * _ROWS * _LONG
    assert _open_in(tmp_path / "spill") == 0
    found = table.read()
    expected = [id for id in range(_PARTS * _ROWS) if (id + 1) % _ROWS]
    assert np.array_equal(np.sort(found["id"].to_numpy()), expected)
    assert set(map(len, found["big"].to_pylist())) == {_LONG}


def test_the_file_is_gone_after_an_error(tmp_path: Path) -> None:
    calls = iter(range(_PARTS))

    def read(keys: pa.Table) -> pa.Table:
        if next(calls) == 2:
            raise ValueError("it cannot be decoded")
        return _rows(keys["id"].combine_chunks(), 1)

    with pytest.raises(ValueError, match="it cannot be decoded"):
        _apply(delta_table(tmp_path / "lake", "t"), tmp_path / "spill", read)
    assert _open_in(tmp_path / "spill") == 0


def test_none_of_the_rows_is_on_the_server(tmp_path: Path) -> None:
    table = delta_table(tmp_path / "lake", "t")
    _apply(table, tmp_path / "spill", lambda keys: _rows(keys["id"].combine_chunks(), 1).slice(0, 0))
    assert table.read().num_rows == 0
