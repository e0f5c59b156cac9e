"""The exit status of a mirror with --until: 0 only if all tables have what it should bring."""

from __future__ import annotations

import signal
import subprocess

import pytest

from pgoutput_fast.mirror import status_of
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from support.capturing import wait_until
from support.fresh import ahead, position_now
from support.mirrors import Place, current_of, expect_equal, history_of, place

__all__ = ["place"]


def _ended(place: Place, *more: str) -> tuple[int, str]:
    done = subprocess.run(
        place.arguments("--until", "now", "--quiet", *more),
        capture_output=True,
        text=True,
        env=place.environment,
    )
    return done.returncode, done.stderr


def test_a_table_that_is_stopped(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR TABLE orders, customers",
    )
    assert _ended(place)[0] == 0
    place.database.execute("ALTER TABLE customers ADD COLUMN _seq int", "INSERT INTO customers VALUES (1, 1)")
    status, said = _ended(place)
    assert status == 1
    assert "public.customers did not take what committed up to now: pgoutput-fast status says why" in said


@pytest.mark.slow
def test_a_history_that_does_not_go_on(place: Place) -> None:
    """Its current table is loaded again, and has all."""
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v int)",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
        "INSERT INTO orders VALUES (1, 1)",
    )
    assert _ended(place)[0] == 0
    place.database.execute("ALTER TABLE orders ALTER v TYPE text", "INSERT INTO orders VALUES (2, 'x')")
    for _ in range(2):
        status, said = _ended(place)
        assert status == 1
        assert "public.orders did not take what committed up to now: pgoutput-fast status says why" in said
    expect_equal(place, "public.orders")
    assert _ended(place, "--reload", "public.orders")[0] == 0


@pytest.mark.slow
def test_tables_that_are_dropped_and_renamed(place: Place) -> None:
    """Nothing is wrong with them, so no run fails. What was committed before is in what stays of a dropped one."""
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE dropped (id int PRIMARY KEY)",
        "CREATE TABLE renamed (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    assert _ended(place)[0] == 0
    place.database.execute(
        "INSERT INTO dropped VALUES (1)",
        "DROP TABLE dropped",
        "INSERT INTO renamed VALUES (2)",
        "ALTER TABLE renamed RENAME TO other",
        "INSERT INTO other VALUES (3)",
        "INSERT INTO orders VALUES (4)",
    )
    for n in range(2):
        status, said = _ended(place)
        assert status == 0, said
        assert ("WARNING: public.dropped is not published any more: its current" in said) == (not n)
        assert ("WARNING: public.renamed is public.other now" in said) == (not n)
        assert "ERROR" not in said
        states = {each.table: (each.state, each.waiting_rows) for each in status_of(place.target)}
        assert states == {
            "public.dropped": ("unpublished", 0),
            "public.orders": ("follow", 0),
            "public.renamed": ("follow", 0),
        }
    dropped = open_current("delta", open_store(place.target), "public.dropped", TableOptions()).read()
    assert dropped["id"].to_pylist() == [1]
    assert history_of(place.target, "public.renamed")["id"].to_pylist() == [2, 3]
    assert current_of(place.target, "public.renamed")["id"].to_pylist() == [2, 3]
    expect_equal(place, "public.orders")


@pytest.mark.slow
def test_changes_that_wait_when_a_table_is_dropped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its current table gets them."""
    monkeypatch.setattr("pgoutput_fast.mirror.service.run._LOOK_SECONDS", 0.3)
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR ALL TABLES"
    )
    place.run()
    with ahead(place, sound=False) as mirror:
        place.database.execute("INSERT INTO t VALUES (1)")
        position_now(place)
        assert [each.waiting_rows for each in mirror.status() if each.table == "public.t"] == [1]
        place.database.execute("DROP TABLE t")
        wait_until(lambda: "unpublished" in {each.state for each in mirror.status()})
        assert (
            open_current("delta", open_store(place.target), "public.t", TableOptions()).read().num_rows == 1
        )


@pytest.mark.slow
def test_forget_a_table(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE old (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    assert _ended(place)[0] == 0
    status, said = _ended(place, "--forget", "public.old")
    assert (status, said.splitlines()[-1]) == (
        1,
        "pgoutput-fast: public.old is still mirrored: drop it, or drop it from the publication, and run the mirror with "
        "--until now. Then forget it",
    )
    place.database.execute("DROP TABLE old", "INSERT INTO orders VALUES (1)")
    assert _ended(place)[0] == 0
    assert _ended(place, "--forget", "old")[1].endswith(
        "pgoutput-fast: old is not mirrored; mirrored: public.old, public.orders\n"
    )
    for arguments in (["--forget", "public.old"], []):
        assert _ended(place, *arguments)[0] == 0
        assert [each.table for each in status_of(place.target)] == ["public.orders"]
    assert (place.target / "current" / "public.old").exists()
    assert (place.target / "history" / "public.old").exists()
    expect_equal(place, "public.orders")
    place.database.execute("CREATE TABLE old (id int PRIMARY KEY)")
    assert _ended(place)[0] == 1
    (old,) = (each for each in status_of(place.target) if each.table == "public.old")
    assert "is the history of a mirror whose state is gone" in str(old.error)


def test_a_mirror_that_is_stopped_before(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE PUBLICATION mirrored FOR TABLE orders",
    )
    # No log goes so far.
    process = place.start("--until", "FFFFFFF/0")
    try:
        wait_until(lambda: (place.target / "current").exists())
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=240)[1]
    finally:
        process.kill()
    assert process.returncode == 1
    assert "it was stopped before all tables had what committed up to FFFFFFF/0" in said
