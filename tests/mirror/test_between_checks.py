"""Tables that were altered between two checks of the catalogs: what the stream and the catalogs say of them together."""

from __future__ import annotations

from typing import Any

import deltalake
import pytest

from pgoutput_fast.merge import local
from pgoutput_fast.mirror.follow.quiet_tables import QuietTables
from pgoutput_fast.mirror.service import run
from support.mirrors import Place, expect_equal, loads_of, place

__all__ = ["place"]

_COLUMN = "ALTER TABLE {} ADD c int DEFAULT 5"
_COLUMN_ONCE = (_COLUMN, "ALTER TABLE {} ALTER c DROP DEFAULT")
_SWAP = "BEGIN; ALTER TABLE {0} RENAME b TO x; ALTER TABLE {0} RENAME note TO b; ALTER TABLE {0} RENAME x TO note; COMMIT"


def _make(place: Place, *tables: str) -> None:
    for name in tables:
        place.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, note int, b int)",
            f"INSERT INTO {name} VALUES (1, 10, 100), (2, 20, 200)",
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")


def _do(place: Place, table: str, *commands: str) -> None:
    place.database.execute(*(each.format(table) for each in commands))


def test_names_that_another_column_had(place: Place) -> None:
    _make(place, "renamed", "swapped")
    place.run()
    _do(
        place,
        "renamed",
        "ALTER TABLE {} ADD c int",
        "INSERT INTO {} VALUES (3, 30, 300, 3000)",
        "ALTER TABLE {} DROP c",
        "ALTER TABLE {} RENAME b TO c",
    )
    _do(place, "swapped", _SWAP, "INSERT INTO {} (id, b, note) VALUES (3, 30, 300)", _SWAP)
    place.run()
    for name in ("renamed", "swapped"):
        expect_equal(place, f"public.{name}")
        assert loads_of(place, f"public.{name}") == 2


def test_values_that_only_the_catalogs_had(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(place, "quiet", "changed", "wider")
    with place.mirror(trust_widening=True) as mirror:
        mirror.run(until_lsn="now")
        for name in ("quiet", "changed"):
            _do(place, name, *_COLUMN_ONCE)
        with monkeypatch.context() as patch:  # as if it was killed before
            patch.setattr(QuietTables, "check", lambda *_: None)
            mirror.run(until_lsn="now")
        for name in ("quiet", "changed"):
            _do(place, name, "VACUUM FULL {}")
        _do(place, "changed", "INSERT INTO {} VALUES (3, 30, 300, 3000)")
        _do(place, "wider", *_COLUMN_ONCE, "ALTER TABLE {} ALTER b TYPE bigint")
        mirror.run(until_lsn="now")
    for name in ("quiet", "changed", "wider"):
        expect_equal(place, f"public.{name}")
        assert loads_of(place, f"public.{name}") == 2


def test_a_column_that_follows_changes_without_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes come after the check, together with later commits of another table."""
    _make(place, "quiet", "busy")
    place.run()
    check, database = run.check_publications, place.database
    _do(place, "quiet", "INSERT INTO {} VALUES (3, 30, 300)", _COLUMN)

    def end() -> int:
        return int(database.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])

    until = end() + 4096

    def checked(*arguments: Any) -> set[str]:
        missing = check(*arguments)
        while end() <= until:
            _do(place, "busy", "UPDATE {} SET b = b + 1")
        return missing

    monkeypatch.setattr(run, "check_publications", checked)
    with place.mirror() as mirror:
        mirror.run(until_lsn=until)
    monkeypatch.undo()
    place.run()
    place.run()
    expect_equal(place, "public.quiet", "public.busy")
    assert loads_of(place, "public.quiet") == 1


def test_another_program_commits_before_a_column_comes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(place, "quiet")
    place.run()
    _do(place, "quiet", _COLUMN)
    commit, times = local.commit, 0

    def late(*arguments: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            table = deltalake.DeltaTable(str(place.target / "current/public.quiet"))
            table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "31"})
        return commit(*arguments, **more)

    monkeypatch.setattr(local, "commit", late)
    place.run()
    assert times == 2
    expect_equal(place, "public.quiet")
    assert loads_of(place, "public.quiet") == 1


def test_a_column_that_a_table_cannot_have_stops_that_table_only(place: Place) -> None:
    _make(place, "quiet", "other")
    place.run()
    _do(place, "quiet", 'ALTER TABLE {} ADD "NOTE" int DEFAULT 5')
    for _ in range(2):
        _do(place, "other", "UPDATE {} SET b = b + 1")
        with place.mirror() as mirror:
            mirror.run(until_lsn="now")
            (other, quiet) = mirror.status()
        assert other.state == "follow"
        assert quiet.state == "stopped"
        assert "'NOTE'" in str(quiet.error)
    expect_equal(place, "public.other")


@pytest.mark.parametrize("steps", ["x to z, y to x, z to y", "x to z, z to x"])
def test_labels_that_change_and_come_back(place: Place, steps: str) -> None:
    place.database.execute(
        "CREATE TYPE mood AS ENUM ('x', 'y')",
        "CREATE TABLE t (id int PRIMARY KEY, m mood)",
        "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    for step in steps.split(", "):
        before, after = step.split(" to ")
        place.database.execute(
            f"ALTER TYPE mood RENAME VALUE '{before}' TO '{after}'",
            f"INSERT INTO t SELECT max(id) + 1, '{after}' FROM t",
        )
    place.run()
    expect_equal(place, "public.t")
    place.database.execute("ALTER TYPE mood ADD VALUE 'new'", "INSERT INTO t VALUES (9, 'new')")
    place.run()
    expect_equal(place, "public.t")
    assert loads_of(place, "public.t") == 2
