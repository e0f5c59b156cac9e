"""The exit status of a mirror with --until: 0 only if all tables have what it should bring."""

from __future__ import annotations

import signal
import subprocess

from support.capturing import wait_until
from support.mirrors import Place, place

__all__ = ["place"]


def _ended(place: Place) -> tuple[int, str]:
    done = subprocess.run(
        place.arguments("--until", "now", "--quiet"), capture_output=True, text=True, env=place.environment
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
