"""What no server sends is an error that says where it is, and no value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.change_arrays import change_arrays
from pgoutput_fast.merge.effect.net_effect import net_effect
from support.changes import Changes

SECRET = "never shown"


def changes() -> Changes:
    return Changes(id=pa.int64(), k=pa.string(), t=pa.string())


def edited(table: pa.Table, column: str, values: list[object]) -> pa.Table:
    place = table.column_names.index(column)
    return table.set_column(place, table.field(place), pa.array(values, table.field(place).type))


def error(table: pa.Table, *key: str) -> str:
    with pytest.raises(ValueError, match=r"changes|message") as caught:
        net_effect(table, key)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_nothing_changed() -> None:
    for key in ((), ("id",)):
        effect = net_effect(changes().table(), key)
        assert (effect.truncated, effect.gone.num_rows, effect.rows.num_rows) == (False, 0, 0)
        assert effect.rows.column_names == ["id", "k", "t", "_commit_lsn", "_unrepresentable"]
        assert effect.gone.column_names == [*(key or ("id", "k", "t", "_unrepresentable"))]


def test_only_what_is_behind_the_last_truncate_counts() -> None:
    made = changes().insert(id=1).truncate().insert(id=2).truncate().insert(id=3).update(id=3, k="x")
    arrays = change_arrays(made.table())
    assert (arrays.truncated, len(arrays), arrays.seq.tolist()) == (True, 2, [5, 6])
    assert not change_arrays(changes().insert(id=1).table()).truncated


@pytest.mark.parametrize("column", ["_change_type", "_seq", "_commit_lsn", "_key_only", "_unchanged"])
def test_a_metadata_column_is_missing(column: str) -> None:
    assert error(changes().insert(id=1).table().drop_columns([column])) == (
        f"the changes lack the metadata columns {column}"
    )


def test_changes_that_are_not_committed() -> None:
    said = error(edited(changes().insert(id=1).table(), "_commit_lsn", [None]), "id")
    assert said == "changes of public.t have no _commit_lsn: they are not rows of the committed view"


@pytest.mark.parametrize("kind", [None, "upsert"])
def test_a_change_type_that_does_not_exist(kind: str | None) -> None:
    table = changes().insert(id=1).insert(id=2, k=SECRET).table()
    said = error(edited(table, "_change_type", ["insert", kind]), "id")
    assert said == "message 2, relation public.t: unknown change type"


def test_an_old_row_without_its_new_row() -> None:
    table = changes().insert(id=1).update({"id": 1, "k": SECRET}, id=2).insert(id=3).table()
    alone = "message 2, relation public.t: the old row of an update has no new row right after it"
    assert error(table.take([0, 1]), "id") == alone
    assert error(table.take([0, 1, 3]), "id") == alone
    assert error(table.take([0, 1, 3, 2]), "id") == alone
    assert error(edited(table, "_seq", [1, 2, 3, 4]), "id") == alone


def test_a_new_row_that_lacks_a_value() -> None:
    table = changes().insert(id=1, k=SECRET, _unchanged=["t"]).table()
    for key in ("id",), ():
        said = error(table, *key)
        assert said.startswith("message 1, relation public.t, column 't': the server sent a new row without")
        assert "row filter" in said


def test_changes_that_do_not_tell_their_table() -> None:
    table = changes().insert(id=1, _unchanged=["t"]).table().replace_schema_metadata(None)
    assert error(table).startswith("message 1, column 't': the server sent")
