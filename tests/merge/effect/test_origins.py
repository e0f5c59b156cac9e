"""Where values stand that updates did not send."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast.merge.effect.origins import origins


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 50)), max_size=30))
def test_the_same_as_step_by_step(rows: list[tuple[bool, int]]) -> None:
    before = [min(earlier, k - 1) for k, (_, earlier) in enumerate(rows)]
    expected: list[int] = []
    for k, (unsent, _) in enumerate(rows):
        expected.append(expected[before[k]] if unsent and before[k] >= 0 else k)
    unsent = np.array([k for k, (is_unsent, _) in enumerate(rows) if is_unsent], np.int64)
    assert origins(unsent, np.array(before, np.int64)).tolist() == expected


def test_a_row_with_very_many_updates() -> None:
    count = 300_000
    found = origins(np.arange(1, count), np.arange(count) - 1)
    assert not found.any()
