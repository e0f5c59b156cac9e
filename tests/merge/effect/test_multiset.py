"""The net effect on a table without a key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.net_effect import net_effect
from support.changes import Changes


def changes() -> Changes:
    return Changes(t=pa.string(), n=pa.int64(), spots=pa.list_(pa.struct([("x", pa.float64())])))


def effect(made: Changes) -> Effect:
    return net_effect(made.table(), [])


def gone(of: Effect) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in of.gone.to_pylist()]


def rows(of: Effect) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in of.rows.to_pylist()]


def test_only_new_rows() -> None:
    found = effect(changes().insert(t="a").commit().insert(t="a"))
    assert rows(found) == [("a", None, None, 100, None), ("a", None, None, 200, None)]
    assert (gone(found), found.key) == ([], ())


def test_a_removal_takes_the_oldest_copy_of_the_changes_or_one_from_before() -> None:
    made = changes().insert(t="a").commit().insert(t="a").delete(t="a").insert(t="b")
    assert rows(effect(made)) == [("a", None, None, 200, None), ("b", None, None, 200, None)]
    made.delete(t="a").delete(t="a").delete(t="a").delete(t="b", n=0)
    assert rows(effect(made)) == [("b", None, None, 200, None)]
    assert gone(effect(made)) == [("a", None, None, None)] * 2 + [("b", 0, None, None)]


def test_a_row_that_was_there_goes_before_an_equal_one_comes() -> None:
    found = effect(changes().delete(t="a").commit().insert(t="a"))
    assert (gone(found), rows(found)) == ([("a", None, None, None)], [("a", None, None, 200, None)])


def test_updates() -> None:
    made = (
        changes().update({"t": "a"}, t="b").update({"t": "b"}, t="c").update({"t": "x", "n": 1}, t="x", n=2)
    )
    assert gone(effect(made)) == [("a", None, None, None), ("x", 1, None, None)]
    assert rows(effect(made)) == [("c", None, None, 100, None), ("x", 2, None, 100, None)]


def test_two_rows_change_their_values_with_each_other() -> None:
    """A deferred constraint lets both have the same value in between."""
    made = changes().update({"t": "a", "n": 1}, t="a", n=2).update({"t": "b", "n": 2}, t="b", n=1)
    assert sorted(gone(effect(made))) == [("a", 1, None, None), ("b", 2, None, None)]
    assert sorted(rows(effect(made))) == [("a", 2, None, 100, None), ("b", 1, None, 100, None)]
    back = made.update({"t": "a", "n": 2}, t="a", n=1).update({"t": "b", "n": 1}, t="b", n=2)
    assert sorted(row[:2] for row in rows(effect(back))) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("marked", [False, True])
def test_values_that_are_equal_in_postgresql(marked: bool) -> None:
    marks = ["n"] if marked else None
    nan = [{"x": float("nan")}, {"x": None}, None]
    made = changes().insert(t="", spots=nan, _marks=marks).delete(t="", spots=nan, _marks=marks)
    assert (gone(effect(made)), rows(effect(made))) == ([], [])
    for other in (
        {"t": None, "spots": nan, "_marks": marks},
        {"t": "", "spots": [*nan[:2], {"x": None}], "_marks": marks},
        {"t": "", "spots": nan, "_marks": None if marked else ["n"]},
        {"t": "", "spots": nan, "n": 0},
    ):
        made = changes().insert(t="", spots=nan, _marks=marks).delete(**other)
        assert (len(gone(effect(made))), len(rows(effect(made)))) == (1, 1)
    made = changes().insert(spots=[{"x": 0.0}]).delete(spots=[{"x": -0.0}])
    assert (len(gone(effect(made))), len(rows(effect(made)))) == (1, 1)


def test_values_that_were_not_sent_come_from_the_old_row() -> None:
    """The decoder does this itself. Rows from elsewhere may still lack them."""
    old = {"t": "large", "n": 1, "_marks": ["spots"]}
    made = changes().insert(**old).update(old, n=2, _unchanged=["t", "spots"])
    assert rows(effect(made)) == [("large", 2, None, 100, ["spots"])]
    made.delete(t="large", n=2, _marks=["spots"])
    assert (gone(effect(made)), rows(effect(made))) == ([], [])


def test_truncate() -> None:
    made = changes().delete(t="a").insert(t="b").truncate().insert(t="c").insert(t="d").delete(t="c")
    found = effect(made)
    assert (found.truncated, gone(found), rows(found)) == (True, [], [("d", None, None, 100, None)])
    made.delete(t="d").delete(t="d").insert(t="d")
    with pytest.raises(
        ValueError, match=r"message 8, relation public.t: it removes a row that does not exist"
    ):
        effect(made)


@pytest.mark.parametrize(
    "made",
    [
        changes().insert(t="secret").update(t="secret"),
        changes().insert(t="secret").delete(n=1, _key_only=True),
        changes().insert(t="secret").update({"n": 1, "_key_only": True}, n=2, t="secret"),
    ],
)
def test_an_old_row_that_is_not_whole(made: Changes) -> None:
    said = "message 2, relation public.t: the server did not send the whole old row.*REPLICA IDENTITY FULL"
    with pytest.raises(ValueError, match=said):
        effect(made)


def test_an_old_row_that_lacks_a_value() -> None:
    with pytest.raises(ValueError, match=r"message 1, relation public.t, column 't': the old row lacks this"):
        effect(changes().delete(n=1, _unchanged=["t"]))


def test_a_table_without_columns() -> None:
    found = net_effect(Changes().insert().insert().delete().table(), [])
    assert (found.rows.num_rows, found.gone.num_rows) == (1, 0)
