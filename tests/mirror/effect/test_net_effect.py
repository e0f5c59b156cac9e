"""Effects, applied one after another, give what the changes give when they are applied one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgoutput_fast.mirror.effect.net_effect import net_effect
from reference.current import CurrentRows
from support.histories import History, histories

SETTINGS = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


def check(history: History, cuts: list[int], batch_rows: int) -> None:
    one_by_one, by_effects = (CurrentRows(history.key, history.columns) for _ in range(2))
    edges = sorted({0, *(cut for cut in cuts if cut < len(history.transactions)), len(history.transactions)})
    for begin, end in itertools.pairwise(edges):
        changes = [change for each in history.transactions[begin:end] for change in each]
        table = history.table(changes, batch_rows)
        one_by_one.apply_changes(table.to_pylist())
        by_effects.apply_effect(net_effect(table, history.key))
        assert by_effects.sorted() == one_by_one.sorted()


@SETTINGS
@given(histories(keyed=True), st.lists(st.integers(1, 8), max_size=4), st.integers(1, 5))
def test_a_table_with_a_key(history: History, cuts: list[int], batch_rows: int) -> None:
    check(history, cuts, batch_rows)


@SETTINGS
@given(histories(keyed=False), st.lists(st.integers(1, 8), max_size=4), st.integers(1, 5))
def test_a_table_without_a_key(history: History, cuts: list[int], batch_rows: int) -> None:
    check(history, cuts, batch_rows)


def test_a_single_text_is_no_key() -> None:
    with pytest.raises(TypeError, match="key must be a list"):
        net_effect(None, "id")  # type: ignore[arg-type]
