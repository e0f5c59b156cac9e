"""Columns that become wider: the current table is loaded again, and the history keeps its rows, in the wider type."""

from __future__ import annotations

import deltalake
import pyarrow as pa
import pytest

from pgoutput_fast.mirror import Mirror
from support.mirrors import Place, expect_equal, expect_replayed, history_of, place

__all__ = ["place"]

# What the column is, what it becomes, and the types that its history has then; None if its Arrow type stays.
CHANGES = {
    "whole": ("int", "bigint", pa.int64()),
    "other": ("int", "bigint USING v * 2", pa.int64()),
    "short": ("smallint", "int", pa.int32()),
    "float": ("real", "double precision", pa.float64()),
    "digits": ("numeric(10, 2)", "numeric(14, 2)", pa.decimal128(14, 2)),
    "places": ("numeric(10, 2)", "numeric(14, 4)", pa.decimal128(14, 4)),
    "lists": ("int[]", "bigint[]", pa.list_(pa.int64())),
    "texts": ("varchar(5)", "text", None),
    "longer": ("varchar(5)", "varchar(50)", None),
}
_VALUES = {"lists": "'{1,NULL}'", "float": "0.1"}


def _changes_in_one_segment(place: Place, names: list[str]) -> None:
    """Rows of both types come at once: one table has a file of each."""
    for n, name in enumerate(names):
        _, wider, _ = CHANGES[name]
        value = _VALUES.get(name, "7")
        place.database.execute(
            f"INSERT INTO t_{name} VALUES (100, {value})",
            f"UPDATE t_{name} SET v = NULL WHERE id = 2",
            f"ALTER TABLE t_{name} ALTER v TYPE {wider}",
            f"INSERT INTO t_{name} VALUES (200, {value})",
            *([f"ALTER TABLE t_{name} ADD w int"] if n % 2 else []),
        )


def _expect_wider(place: Place, mirror: Mirror, names: list[str]) -> None:
    place.expect_no_errors(mirror)
    for name in names:
        _, _, kind = CHANGES[name]
        table = f"public.t_{name}"
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])
        history = history_of(place.target, table)
        assert history["_change_type"].to_pylist().count("truncate") == (kind is not None)
        assert history["id"].to_pylist()[:3] == [1, 2, 3]  # the rows of the first load
        if kind is not None:
            found = deltalake.DeltaTable(str(place.target / "history" / table)).to_pyarrow_table().schema
            assert str(found.field("v").type).replace("element", "item") == str(kind).replace(
                "element", "item"
            )


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_wider_columns(place: Place, is_killed: bool) -> None:
    names = ["whole", "lists"] if is_killed else [*CHANGES]
    for name in names:
        narrow, _, _ = CHANGES[name]
        place.database.execute(
            f"CREATE TABLE t_{name} (id int PRIMARY KEY, v {narrow})",
            f"INSERT INTO t_{name} SELECT g, {_VALUES.get(name, '7')} FROM generate_series(1, 3) g",
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    place.run()
    _changes_in_one_segment(place, names)
    if is_killed:
        place.killed(["pgoutput_fast.mirror.follow.history", "AppendTable.commit", 2])
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        _expect_wider(place, mirror, names)
        for name in names:
            place.database.execute(
                f"UPDATE t_{name} SET v = NULL WHERE id = 1", f"DELETE FROM t_{name} WHERE id = 3"
            )
        mirror.run(until_lsn="now")
        _expect_wider(place, mirror, names)
    for each in place.target.glob("history/*"):
        versions = range(deltalake.DeltaTable(str(each)).version() + 1)
        known = {
            uri.rpartition("/")[2] for n in versions for uri in deltalake.DeltaTable(str(each), n).file_uris()
        }
        assert {file.name for file in each.glob("*.parquet")} <= known
