"""Changes in the order in which they are applied."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pgoutput_fast.mirror.follow.apply_order import in_order
from support.changes import Changes


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_changes(seed: int) -> None:
    made = Changes(t=pa.string()).insert(t="a").update({"t": "a"}, t="b").commit().truncate()
    changes = made.insert(t="c").commit().update({"t": "c"}, t="d").delete(t="d").table()
    places = random.Random(seed).sample(range(changes.num_rows), changes.num_rows)
    shuffled = pa.concat_tables([changes.slice(place, 1) for place in places])
    assert in_order(shuffled).combine_chunks().equals(changes.combine_chunks())


def test_no_changes() -> None:
    changes = Changes(t=pa.string()).table()
    assert in_order(changes).num_rows == 0
    assert in_order(pa.Table.from_batches([], changes.schema)).schema.equals(changes.schema)
