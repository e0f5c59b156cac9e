"""The net effect on a table with a key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.net_effect import net_effect
from support.changes import Changes


def changes() -> Changes:
    return Changes(id=pa.int64(), t=pa.string(), big=pa.string())


def effect(made: Changes) -> Effect:
    return net_effect(made.table(), ["id"])


def gone(of: Effect) -> list[int]:
    return of.gone["id"].to_pylist()


def rows(of: Effect) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in of.rows.to_pylist()]


def unfilled(of: Effect) -> list[tuple[str, list[int], list[int]]]:
    return [(each.column, each.rows.to_pylist(), each.keys["id"].to_pylist()) for each in of.unfilled]


def key(number: int) -> dict[str, Any]:
    return {"id": number, "_key_only": True}


def test_the_last_change_of_a_key_counts() -> None:
    made = changes().insert(id=1, t="a").insert(id=2, t="b").commit().update(id=1, t="c").commit()
    made.update(id=9, t="d").delete(id=2).delete(id=8).insert(id=7, t="e").delete(id=7)
    found = effect(made)
    assert rows(found) == [(1, "c", None, 200, None), (9, "d", None, 300, None)]
    # Rows 2 and 7 were not there before.
    assert (gone(found), found.truncated, found.key) == ([8], False, ("id",))


def test_a_row_that_goes_and_comes_again() -> None:
    made = changes().delete(id=1).insert(id=1, t="new").commit().delete(id=2).insert(id=2).delete(id=2)
    assert (gone(effect(made)), rows(effect(made))) == ([2], [(1, "new", None, 100, None)])


def test_keys_that_change() -> None:
    made = changes().update(key(1), id=2, t="a").update(key(2), id=3, t="a").update(key(4), id=1, t="b")
    assert (gone(effect(made)), rows(effect(made))) == (
        [4],
        [(3, "a", None, 100, None), (1, "b", None, 100, None)],
    )


def test_two_rows_change_their_keys_with_each_other() -> None:
    made = changes().update(key(1), id=-1, t="a").update(key(2), id=1, t="b").update(key(-1), id=2, t="a")
    assert (gone(effect(made)), [row[:2] for row in rows(effect(made))]) == ([], [(1, "b"), (2, "a")])


def test_an_old_row_with_the_same_key() -> None:
    """The server sends it if a value of the key is stored out of line."""
    assert gone(effect(changes().update(key(1), id=1, t="a"))) == []
    assert rows(effect(changes().insert(id=1).update(key(1), id=1, t="a"))) == [(1, "a", None, 100, None)]


def test_keys_of_arrows_uuid_type() -> None:
    one, other = (bytes([k]) * 16 for k in (1, 2))
    made = Changes(id=pa.binary(16), t=pa.string()).insert(id=one, t="a").update(id=other, t="b")
    made.update({"id": one, "_key_only": True}, id=other[::-1][:8] + one[:8], _unchanged=["t"])
    table = made.table()
    storage = table["id"].combine_chunks()
    table = table.set_column(11, "id", pa.ExtensionArray.from_storage(pa.uuid(), storage))
    found = net_effect(table, ["id"])
    assert found.rows.schema.field("id").type == pa.uuid()
    assert found.rows["t"].to_pylist() == ["b", "a"]


# ---- values that were not sent -----------------------------------------------------------------------------


def test_values_that_were_not_sent_come_from_other_changes() -> None:
    made = changes().insert(id=1, big="X").update(id=1, t="a", _unchanged=["big"]).commit()
    made.update(id=1, t="b", _unchanged=["big"]).update(id=2, big="Y").update(id=2, _unchanged=["big"])
    found = effect(made)
    assert rows(found) == [(1, "b", "X", 200, None), (2, None, "Y", 200, None)]
    assert unfilled(found) == []


def test_values_follow_a_row_through_its_keys() -> None:
    made = changes().insert(id=1, big="X").update(key(1), id=2, _unchanged=["big"])
    made.insert(id=1, big="Y").update(key(2), id=3, t="c", _unchanged=["big"])
    assert rows(effect(made)) == [(1, None, "Y", 100, None), (3, "c", "X", 100, None)]


def test_values_that_only_the_table_has() -> None:
    made = changes().update(key(1), id=2, _unchanged=["big"]).update(key(2), id=3, _unchanged=["t", "big"])
    made.insert(id=1, big="other").update(id=5, t="a", _unchanged=["big"]).update(id=6, big="b")
    found = effect(made)
    assert rows(found) == [
        (3, None, None, 100, None),
        (1, None, "other", 100, None),
        (5, "a", None, 100, None),
        (6, None, "b", 100, None),
    ]
    # The column t of row 3 has the value that the row had as row 2.
    assert unfilled(found) == [("big", [0, 2], [1, 5])]


def test_a_row_that_is_deleted_needs_no_values() -> None:
    made = changes().update(id=1, _unchanged=["big"]).update(key(1), id=2, _unchanged=["big"]).delete(id=2)
    found = effect(made)
    assert (gone(found), rows(found), unfilled(found)) == ([1], [], [])


def test_a_row_that_comes_again_does_not_take_the_values_of_the_one_before() -> None:
    made = changes().insert(id=1, big="X").delete(id=1).insert(id=1).update(id=1, _unchanged=["big"])
    assert rows(effect(made)) == [(1, None, None, 100, None)]


def test_columns_that_the_changes_do_not_have_are_no_matter() -> None:
    made = changes().update(id=1, t="a", _unchanged=["left out"], _marks=["left out"])
    assert (rows(effect(made)), unfilled(effect(made))) == ([(1, "a", None, 100, None)], [])


# ---- values without an Arrow form --------------------------------------------------------------------------


def test_a_value_without_an_arrow_form_stays_marked() -> None:
    made = changes().insert(id=1, _marks=["t", "big"]).update(id=1, t="a", _unchanged=["big"])
    made.update(key(1), id=2, _unchanged=["big"]).insert(id=1).insert(id=3, _marks=["big", "t"])
    assert rows(effect(made)) == [
        (2, None, None, 100, ["big"]),
        (1, None, None, 100, None),
        (3, None, None, 100, ["t", "big"]),
    ]


def test_a_new_value_takes_the_mark_away() -> None:
    made = changes().insert(id=1, _marks=["big"]).update(id=1, big="x")
    assert rows(effect(made)) == [(1, None, "x", 100, None)]


# ---- truncate ----------------------------------------------------------------------------------------------


def test_nothing_from_before_a_truncate_is_left() -> None:
    made = changes().insert(id=1).update(id=2, _unchanged=["big"]).delete(id=3).truncate()
    found = effect(made)
    assert (found.truncated, gone(found), rows(found), unfilled(found)) == (True, [], [], [])
    made.insert(id=1, t="a").insert(id=2).delete(id=2)
    found = effect(made)
    assert (found.truncated, gone(found), rows(found)) == (True, [], [(1, "a", None, 100, None)])


@pytest.mark.parametrize("kind", ["update", "delete", "move"])
def test_behind_a_truncate_is_a_change_of_a_row_that_is_not_there(kind: str) -> None:
    made = changes().insert(id=1).truncate()
    if kind == "update":
        made.update(id=1)
    elif kind == "delete":
        made.delete(id=1)
    else:
        made.update(key(1), id=2)
    with pytest.raises(
        ValueError, match=r"message 3, relation public.t: it changes a row that does not exist"
    ):
        effect(made)


# ---- changes that cannot be --------------------------------------------------------------------------------


def test_changes_that_contradict_each_other() -> None:
    for made in (
        changes().delete(id=1).update(id=1),
        changes().delete(id=1).delete(id=1),
        changes().update(key(1), id=2).update(id=1),
        changes().insert(id=1).delete(id=1).update(id=1).insert(id=2),
    ):
        with pytest.raises(ValueError, match=r"it changes a row that does not exist.*load the table again"):
            effect(made)
    for made in (changes().insert(id=1).insert(id=1), changes().update(id=1).update(key(2), id=1)):
        with pytest.raises(
            ValueError, match=r"message 2, relation public.t: its new row has the key of another"
        ):
            effect(made)


def test_a_key_without_a_value() -> None:
    for made, said in (
        (changes().insert(t="secret"), "column 'id': a new row has null in a key column"),
        (changes().delete(t="secret"), "column 'id': the old row has no value of a key column"),
        (changes().update({"t": "secret"}, id=1), "column 'id': the old row has no value of a key column"),
        (changes().update(t="secret", _unchanged=["id"]), "column 'id': a key column was not sent"),
        (changes().insert(t="secret", _marks=["id"]), "column 'id': a value of the key has no Arrow form"),
    ):
        with pytest.raises(ValueError, match=f"message 1, relation public.t, {said}") as caught:
            effect(made)
        assert "secret" not in str(caught.value)


def test_a_key_that_is_no_column() -> None:
    with pytest.raises(ValueError, match=r"the changes of public\.t have no column 'nr'"):
        net_effect(changes().insert(id=1).table(), ["nr"])
