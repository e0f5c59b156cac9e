"""Effects, applied one after another, give what the changes give when they are applied one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.merge.effect.change_arrays import change_arrays
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.keyed import keyed_effect
from pgoutput_fast.merge.effect.multiset import multiset_effect
from pgoutput_fast.merge.effect.net_effect import net_effect
from reference.current import CurrentRows
from support.histories import History, histories

SETTINGS = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


def effect_in_pieces(changes: pa.Table, key: Sequence[str]) -> Effect:
    """The effect of changes whose chunks stay as they are, however small they are."""
    arrays = change_arrays(changes)
    return keyed_effect(arrays, key) if key else multiset_effect(arrays)


def check(history: History, cuts: list[int], batch_rows: int, joined: bool) -> None:
    one_by_one, by_effects = (CurrentRows(history.key, history.columns) for _ in range(2))
    edges = sorted({0, *(cut for cut in cuts if cut < len(history.transactions)), len(history.transactions)})
    for begin, end in itertools.pairwise(edges):
        changes = [change for each in history.transactions[begin:end] for change in each]
        table = history.table(changes, batch_rows)
        one_by_one.apply_changes(table.to_pylist())
        by_effects.apply_effect((net_effect if joined else effect_in_pieces)(table, history.key))
        assert by_effects.sorted() == one_by_one.sorted()


@SETTINGS
@given(histories(keyed=True), st.lists(st.integers(1, 8), max_size=4), st.integers(1, 5), st.booleans())
def test_a_table_with_a_key(history: History, cuts: list[int], batch_rows: int, joined: bool) -> None:
    check(history, cuts, batch_rows, joined)


@SETTINGS
@given(histories(keyed=False), st.lists(st.integers(1, 8), max_size=4), st.integers(1, 5), st.booleans())
def test_a_table_without_a_key(history: History, cuts: list[int], batch_rows: int, joined: bool) -> None:
    check(history, cuts, batch_rows, joined)


@pytest.mark.parametrize("key", [[], ["id"]])
@pytest.mark.parametrize("place", [3, 7, 99])
def test_offsets_that_lie_elsewhere(key: list[str], place: int) -> None:
    """Arrow checks the first and the last offset only, when it makes such an array."""
    table = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    for k in range(50):
        wal += writer.change(table, "insert", new=[str(k % 3), "x"])
        wal += writer.change(table, "delete", old=[str(k % 3), "x"])
    wal += writer.commit(100, 108, 0)
    changes = pgo.decode(wal, options=pgo.Options(transactions="committed")).table("public.t")
    offsets = np.arange(101, dtype=np.int32)
    offsets[place] = -100_000_000
    forged = pa.Array.from_buffers(pa.string(), 100, [None, pa.py_buffer(offsets), pa.py_buffer(b"x" * 100)])
    changes = changes.set_column(changes.column_names.index("note"), "note", forged)
    with pytest.raises(ValueError, match="column note of the changes: the Arrow array is damaged"):
        net_effect(changes, key)


def test_a_single_text_is_no_key() -> None:
    with pytest.raises(TypeError, match="key must be a list"):
        net_effect(None, "id")  # type: ignore[arg-type]


def test_rows_are_no_table() -> None:
    with pytest.raises(TypeError, match="changes must be a pyarrow Table, not list"):
        net_effect([{"id": 1}], ["id"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("altered", "value", "is_error"),
    [
        (["", "note"], None, False),
        (["gone", ""], None, False),
        (["id", "id"], None, False),
        (["former", "note"], None, True),
        (["", "note"], "x", True),
    ],
)
def test_altered_columns(altered: list[str], value: str | None, is_error: bool) -> None:
    """Only those that give earlier rows values must be handled by who applies a history."""
    table = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    writer = Writer()
    sent = writer.begin(7, 100, 0)
    for n in range(3):
        sent += writer.change(table, "insert", new=[str(n), "a"])
    sent += writer.commit(100, 108, 0)
    changes = pgo.decode(sent, options=pgo.Options(transactions="committed")).table("public.t")
    row = changes.slice(1, 1).to_pylist()[0] | {"_change_type": "alter", "_unchanged": altered, "note": value}
    alter = pa.Table.from_pylist([row | {"id": None}], changes.schema)
    changes = pa.concat_tables([changes.slice(0, 2), alter, changes.slice(2)])
    if not is_error:
        assert net_effect(changes, ["id"]).rows["id"].to_pylist() == [0, 1, 2]
        return
    with pytest.raises(
        ValueError, match=r"message \d, relation public.t: columns were added or renamed here"
    ):
        net_effect(changes, ["id"])
