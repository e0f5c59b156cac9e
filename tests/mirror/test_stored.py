"""The status of a mirror from outside: from its target, whether the mirror runs or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.mirror import TableStatus, status_of
from support.forms import and_slow
from support.mirrors import Following, Place, place

__all__ = ["place"]

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE customers (id int PRIMARY KEY)",
    "INSERT INTO orders VALUES (1, 'new')",
    "CREATE PUBLICATION mirrored FOR TABLE orders, customers",
)


def test_a_target_without_a_mirror(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="is not the target of a mirror"):
        status_of(tmp_path)


@pytest.mark.parametrize("format", and_slow(["delta"], ["duckdb"]))
def test_it_tells_what_the_mirror_tells(place: Place, format: str) -> None:
    place.database.execute(*TABLES)
    with place.mirror(format=format) as mirror:
        place.run_in(mirror)
        place.database.execute("INSERT INTO orders VALUES (2, 'new')")
        place.run_in(mirror)
        told = mirror.status()
    found = status_of(place.target, place.database.dsn)
    for mine, its in zip(found, told, strict=True):
        assert (mine.table, mine.state, mine.version) == (its.table, its.state, its.version)
        assert (mine.history_position, mine.waiting_rows) == (its.history_position, 0)
        assert mine.position == its.position
        assert None not in (mine.lag_bytes, mine.lag_seconds)
    assert [each.lag_bytes for each in status_of(place.target)] == [None, None]
    assert [each.lag_bytes for each in status_of(place.target, "host=127.0.0.1 port=1")] == [None, None]


def test_a_mirror_that_runs_is_not_disturbed(place: Place) -> None:
    """Histories are ahead of the current tables here: the lag is theirs, and what waits is not known."""
    place.database.execute(*TABLES)
    place.run()
    with place.mirror(merge_seconds=300.0) as mirror, Following(mirror) as following:
        # The first changes are merged at once, the next ones after five minutes.
        place.database.execute("INSERT INTO orders VALUES (2, 'new')")
        following.until(lambda: _status(place, "public.orders").version == 1)
        place.database.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(3, 1000) AS n")
        following.until(lambda: _status(place, "public.orders").waiting_rows is None)
        orders = _status(place, "public.orders")
        assert (orders.history_position or 0) > (orders.position or 0) > 0
        assert (orders.lag_bytes or 0) > 998 * 30
        # Nothing of the other table waits, so it is as far as the histories.
        assert _status(place, "public.customers").waiting_rows == 0
        following.until(lambda: (_status(place, "public.customers").lag_bytes or 0) < (orders.lag_bytes or 0))
    assert [each.waiting_rows for each in status_of(place.target)] == [0, 0]


def _status(place: Place, table: str) -> TableStatus:
    found = {each.table: each for each in status_of(place.target, place.database.dsn)}
    return found[table]


@pytest.mark.slow
def test_a_table_that_is_not_published_any_more(place: Place) -> None:
    place.database.execute(*TABLES)
    place.run()
    place.database.execute("ALTER PUBLICATION mirrored DROP TABLE customers")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        mirror.run(until_lsn="now")
    customers, orders = status_of(place.target, place.database.dsn)
    assert (orders.state, orders.error) == ("follow", None)
    assert (customers.state, customers.error, customers.waiting_rows) == ("unpublished", None, 0)
    assert (customers.lag_bytes, customers.lag_seconds) == (None, None)
