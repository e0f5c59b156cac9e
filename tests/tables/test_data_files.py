"""Rows of files without those that are marked deleted."""

from __future__ import annotations

import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.tables.data_files import rows_that_stay


def _columns(count: int) -> dict[str, pa.Array]:
    every = range(count)
    nulls = np.random.default_rng(3).random(count) < 0.3
    return {
        "id": pa.array(every, pa.int64()),
        "nullable": pa.array(every, pa.int32(), mask=nulls),
        "truth": pa.array([k % 3 == 0 for k in every], mask=nulls),
        "price": pa.array([Decimal(k) / 4 for k in every], pa.decimal128(20, 2), mask=nulls),
        "text": pa.array([str(k) * (k % 5) for k in every], mask=nulls),
        "bytes": pa.array([bytes(4)] * count, pa.binary(4)),
        "list": pa.array([[k] * (k % 3) for k in every], mask=nulls),
        "struct": pa.array([{"a": k, "b": str(k)} for k in every], mask=nulls),
        "uuid": pa.array([uuid.UUID(int=k).bytes for k in every], pa.uuid(), mask=nulls),
        "at": pa.array(every, pa.timestamp("us", "UTC")),
        "nothing": pa.nulls(count, pa.list_(pa.struct({"a": pa.string()}))),
        "no uuid": pa.nulls(count, pa.uuid()),
        "null": pa.nulls(count),
    }


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_rows_that_stay(share: float, count: int) -> None:
    """As Arrow's filter returns them, in one chunk or several."""
    stays = np.random.default_rng(1).random(count) >= share
    rows = pa.table(_columns(count)).replace_schema_metadata({"a": "b"})
    for table in (rows, pa.concat_tables([rows.slice(0, 300), rows.slice(300)])):
        found = rows_that_stay(table, stays)
        found.validate(full=True)
        assert found.schema.equals(table.schema, check_metadata=True)
        assert found.equals(table.filter(pa.array(stays, pa.bool_())))
    assert rows_that_stay(pa.table({"": pa.nulls(count)}), stays).num_rows == stays.sum()
