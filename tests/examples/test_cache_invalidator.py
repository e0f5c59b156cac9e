"""docs/examples/cache_invalidator.py: what a reader of the cache sees, also after a restart."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from pgoutput_fast.capture import create_slot
from support import pg
from support.capturing import freed, wait_until
from support.examples import load, shop

NAMES = load("cache_invalidator.py")
ORDERS = "public.orders"


@contextlib.contextmanager
def _following(
    database: pg.Database, cache: Any, keys: Mapping[str, Sequence[str]] | None = None
) -> Iterator[None]:
    stop, failed = threading.Event(), []

    def run() -> None:
        try:
            NAMES["keep_fresh"](cache, keys or {ORDERS: ["id"]}, database.dsn, "cache", ["shop"], stop)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(240)
    assert not failed
    assert not thread.is_alive()


def _note(database: pg.Database, cache: Any, id: int) -> Any:
    return cache.get(ORDERS, (id,), lambda: database.execute(f"SELECT note FROM orders WHERE id = {id}"))


def test_a_reader_sees_changes(servers: pg.Servers) -> None:
    with shop(servers, "cache") as database:
        create_slot(database.dsn, "cache")
        cache = NAMES["Cache"]()
        database.execute("INSERT INTO orders VALUES (1, 'new'), (2, 'new')")
        with _following(database, cache):
            assert _note(database, cache, 2) == [("new",)]
            for change, id, expected in (
                ("UPDATE orders SET note = 'paid' WHERE id = 1", 1, [("paid",)]),
                ("UPDATE orders SET id = 3 WHERE id = 1", 1, []),
                ("UPDATE orders SET id = 1 WHERE id = 3", 3, []),
                ("DELETE FROM orders WHERE id = 1", 1, []),
                ("TRUNCATE orders", 2, []),
            ):
                before = _note(database, cache, id)
                assert before != expected or id == 3
                database.execute(change)
                wait_until(lambda id=id, expected=expected: _note(database, cache, id) == expected)


def test_what_is_acknowledged_was_forgotten(servers: pg.Servers) -> None:
    """A cache outside of the process: what changed while nobody followed is forgotten at the next start."""
    with shop(servers, "cache") as database:
        create_slot(database.dsn, "cache")
        database.execute("INSERT INTO orders VALUES (1, 'new')")
        cache = NAMES["Cache"]()
        _note(database, cache, 1)
        database.execute("UPDATE orders SET note = 'paid'")

        class BrokenError(Exception):
            pass

        class FailsOnce:
            """The program ends in the middle of its work, before the cache has forgotten."""

            def forget(self, table: str, keys: Any) -> None:
                raise BrokenError

        with pytest.raises(BrokenError):
            NAMES["keep_fresh"](
                FailsOnce(), {ORDERS: ["id"]}, database.dsn, "cache", ["shop"], threading.Event()
            )
        confirmed = freed(database.dsn, "cache").confirmed_flush_lsn
        assert _note(database, cache, 1) == [("new",)]
        with _following(database, cache):
            wait_until(lambda: _note(database, cache, 1) == [("paid",)])
        assert (freed(database.dsn, "cache").confirmed_flush_lsn or 0) > (confirmed or 0)


def test_a_row_that_was_read_before_a_change_is_not_kept() -> None:
    cache = NAMES["Cache"]()

    def load() -> str:
        cache.forget(ORDERS, {(1,)})  # as if the change came while this row was on its way
        return "old"

    assert cache.get(ORDERS, (1,), load) == "old"
    assert cache.get(ORDERS, (1,), lambda: "new") == "new"
    assert cache.get(ORDERS, (1,), lambda: "not asked") == "new"


def test_only_rows_of_these_keys_are_forgotten() -> None:
    cache = NAMES["Cache"]()
    for table in (ORDERS, "public.other"):
        for id in (1, 2):
            cache.get(table, (id,), lambda: "kept")
    cache.forget(ORDERS, {(1,)})
    assert [cache.get(ORDERS, (id,), lambda: "read") for id in (1, 2)] == ["read", "kept"]
    cache.forget(ORDERS, None)
    assert [cache.get(ORDERS, (id,), lambda: "again") for id in (1, 2)] == ["again", "again"]
    assert [cache.get("public.other", (id,), lambda: "read") for id in (1, 2)] == ["kept", "kept"]
