"""Columns that become wider: the history keeps its rows, in the wider type. The current table may be loaded again."""

from __future__ import annotations

import deltalake
import pyarrow as pa
import pytest

from pgoutput_fast.mirror import Mirror, fresh, points
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.storage.stores import open_store
from support.ducklake import lakes
from support.mirrors import Place, expect_equal, expect_replayed, history_of, loads_of, place

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
# The server writes no row of these again.
_KEPT = ("digits", "texts", "longer")
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
        assert history["_change_type"].to_pylist().count("truncate") == (name not in _KEPT)
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


# ---- without a load --------------------------------------------------------------------------------------------------

# Table -> its columns beside `id`, whether it has no key, and what is done to it.
_TRUSTED = {
    "id": ("v text", "", ["ALTER TABLE {t} ALTER id TYPE bigint"]),
    "short": ("v int2", "", ["ALTER TABLE {t} ALTER v TYPE int", "ALTER TABLE {t} ALTER v TYPE bigint"]),
    "ints": ("v int", "", ["ALTER TABLE {t} ALTER v TYPE bigint"]),
    "floats": ("v real", "", ["ALTER TABLE {t} ALTER v TYPE float8"]),
    "places": ("v numeric(8, 2)", "", ["ALTER TABLE {t} ALTER v TYPE numeric(12, 4)"]),
    "lists": ("v int[]", "", ["ALTER TABLE {t} ALTER v TYPE bigint[]"]),
    "several": ("v int, w real", "", ["ALTER TABLE {t} ALTER v TYPE bigint, ALTER w TYPE float8"]),
    "keyless": ("v int, w real", "FULL", ["ALTER TABLE {t} ALTER v TYPE bigint, ALTER w TYPE float8"]),
    "dropped": ("v int, w int", "", ["ALTER TABLE {t} ALTER v TYPE bigint, DROP w"]),
}
# Those with changes that the statement of the user does not cover.
_DOUBTED = {
    "other": ("v int, w text", "", ["ALTER TABLE {t} ALTER v TYPE bigint, ALTER w TYPE text USING w || '!'"]),
    "computed": ("v int", "", ["ALTER TABLE {t} ALTER v TYPE bigint, ADD x float8 DEFAULT random()"]),
    # It may have had a default for a while, whose values would be in the new file only.
    "added": ("v int", "", ["ALTER TABLE {t} ALTER v TYPE bigint, ADD x int"]),
    "narrow": ("v bigint", "", ["ALTER TABLE {t} ALTER v TYPE int USING v / 2"]),
    "texts": ("v int", "", ["ALTER TABLE {t} ALTER v TYPE text"]),
}
_FILLED = {"v text": "'a'", "v int[]": "'{1,NULL}'", "v int, w text": "1, 'a'"}
_BEFORE = [
    "INSERT INTO {t} (id) VALUES (100)",
    "UPDATE {t} SET v = NULL WHERE id = 2",
    "DELETE FROM {t} WHERE id = 1",
]
_AFTER = [
    "INSERT INTO {t} (id) VALUES (300)",
    "UPDATE {t} SET v = NULL WHERE id IN (3, 100)",
    "DELETE FROM {t} WHERE id = 4",
]


def _make(place: Place, tables: dict[str, tuple[str, str, list[str]]], publication: str) -> None:
    for name, (columns, identity, _) in tables.items():
        values = _FILLED.get(columns) or ", ".join(
            ["0.1" if "real" in each else "7" for each in columns.split(", ") if each[0] in "vw"]
        )
        place.database.execute(
            f"CREATE TABLE {name} (id int{'' if identity else ' PRIMARY KEY'}, {columns})",
            *([f"ALTER TABLE {name} REPLICA IDENTITY {identity}"] if identity else []),
            f"INSERT INTO {name} SELECT g, {values} FROM generate_series(1, 6) g",
        )
    place.database.execute(f"CREATE PUBLICATION mirrored {publication}")


def _widen(place: Place, tables: dict[str, tuple[str, str, list[str]]]) -> None:
    """Changes rows before, within and after the transaction that makes a column wider."""
    for name, (_, _, commands) in tables.items():
        place.database.execute(*(each.format(t=name) for each in _BEFORE))
        within = f"INSERT INTO {name} (id) VALUES (200)", f"UPDATE {name} SET v = NULL WHERE id IN (5, 200)"
        altered = [each.format(t=name) for each in commands]
        place.database.execute("; ".join(["BEGIN", within[0], *altered, within[1], "COMMIT"]))
        place.database.execute(*(each.format(t=name) for each in _AFTER))


def _expect_followed(
    place: Place, tables: dict[str, tuple[str, str, list[str]]], loads: int, format: str = "delta"
) -> None:
    for name, (_, identity, _) in tables.items():
        expect_equal(place, f"public.{name}", format=format)
        is_refused = format == "iceberg" and name == "places"  # the format has no wider scales
        assert loads_of(place, f"public.{name}") == loads + is_refused, name
        if name != "texts":  # its history has ended
            expect_replayed(place, f"public.{name}", [] if identity else ["id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "merge"),
    [
        ("delta", "on_write"),
        ("delta", "on_read"),
        ("iceberg", "on_write"),
        ("iceberg", "on_read"),
        ("duckdb", "on_write"),
        *lakes("on_write"),
    ],
)
def test_trusted(place: Place, format: str, merge: str) -> None:
    more = {"format": format, "merge": merge, "trust_widening": True}
    _make(place, _TRUSTED, "FOR ALL TABLES")
    place.run(**more)
    before = points(place.target)[-1]
    shown = {name: fresh(place.target, f"public.{name}").sort_by("id") for name in _TRUSTED}
    _widen(place, _TRUSTED)
    place.run(**more)
    place.run(**more)  # for Iceberg, `places` waits for its load
    _expect_followed(place, _TRUSTED, 1, format)
    place.database.execute(
        "VACUUM FULL ints", *(f"UPDATE {name} SET v = NULL WHERE id > 5" for name in _TRUSTED)
    )
    place.run(**more)
    _expect_followed(place, _TRUSTED, 1, format)
    for name in _TRUSTED if format == "delta" else ():
        found = fresh(place.target, f"public.{name}", position=before.lsn).sort_by("id")
        names = shown[name].column_names
        assert found.select(names).to_pylist() == shown[name].to_pylist()


def test_trusted_partitions(place: Place) -> None:
    """And a table for which `SET UNLOGGED` would be refused."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 12) g",
        "CREATE PUBLICATION mirrored FOR TABLE t WITH (publish_via_partition_root)",
    )
    place.run(trust_widening=True)
    place.database.execute(
        "DELETE FROM t WHERE id = 11",
        "ALTER TABLE t ALTER v TYPE bigint",
        "UPDATE t SET v = 10000000000 WHERE id IN (1, 12)",
    )
    for _ in range(2):
        place.run(trust_widening=True)
        expect_equal(place, "public.t")
        assert loads_of(place, "public.t") == 1
    place.database.execute("TRUNCATE t_1")  # which the server does not send
    place.run(trust_widening=True)
    expect_equal(place, "public.t")


@pytest.mark.slow
def test_doubted(place: Place) -> None:
    """More than wider columns: the table is loaded, whatever its user has stated."""
    _make(place, _DOUBTED, "FOR ALL TABLES")
    place.run(trust_widening=True)
    _widen(place, _DOUBTED)
    with place.mirror(trust_widening=True) as mirror:
        for _ in range(2):
            mirror.run(until_lsn="now")
    for name in _DOUBTED:
        expect_equal(place, f"public.{name}")
        record = MirrorState(open_store(place.target)).table(f"public.{name}")
        assert record is not None
        assert len(record.gaps) == 2, name


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "at",
    [
        ["pgoutput_fast.mirror.follow.history", "AppendTable.commit"],
        ["pgoutput_fast.merge.local", "LocalMerge.apply_parts"],
        ["pgoutput_fast.merge.local", "commit"],
        ["pgoutput_fast.mirror.state.mirror_state", "MirrorState.set_table"],
    ],
    ids=lambda at: at[1],
)
def test_killed_when_a_trusted_column_becomes_wider(place: Place, at: list[str], number: int) -> None:
    tables = {name: _TRUSTED[name] for name in ("id", "several")} | {
        "digits": ("v numeric(8, 2)", "", ["ALTER TABLE {t} ALTER v TYPE numeric(12, 2)"])
    }
    _make(place, tables, "FOR ALL TABLES")
    place.run(trust_widening=True)
    _widen(place, tables)
    place.killed([*at, number], "--trust-widening")
    place.run(trust_widening=True)
    _expect_followed(place, tables, 1)
