"""Transfers between two tables of accounts: their total never changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support import pg

__all__ = ["SCHEMA", "TOTAL", "write", "writing"]

_ACCOUNTS = 20
TOTAL = 2 * _ACCOUNTS * 100
SCHEMA = [
    statement
    for side in ("left", "right")
    for statement in (
        f"CREATE TABLE {side}_accounts (id int PRIMARY KEY, balance int NOT NULL)",
        f"INSERT INTO {side}_accounts SELECT g, 100 FROM generate_series(1, {_ACCOUNTS}) g",
    )
]


@contextmanager
def writing(database: pg.Database, writers: int = 1) -> Iterator[None]:
    """During a block, some threads move money from one side to the other."""
    stop = threading.Event()
    threads = [threading.Thread(target=write, args=(database, k, 1 << 30, stop)) for k in range(writers)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join()


def write(database: pg.Database, seed: int, most: int, stop: threading.Event | None = None) -> None:
    """Moves money from one side to the other, `most` times or until `stop` is set. Some transfers are rolled back."""
    dice, stop = random.Random(seed), stop or threading.Event()
    with database.session() as connection, connection.cursor() as cursor:
        while not stop.is_set() and most > 0:
            most -= 1
            here, there = dice.sample(["left", "right"], 2)
            amount = dice.randrange(1, 50)
            # In the order of the names, so that two writers never deadlock.
            both = sorted(
                [
                    (here, -amount, dice.randrange(1, _ACCOUNTS + 1)),
                    (there, amount, dice.randrange(1, _ACCOUNTS + 1)),
                ]
            )
            cursor.execute("BEGIN")
            for side, change, account in both:
                cursor.execute(
                    f"UPDATE {side}_accounts SET balance = balance + %s WHERE id = %s", (change, account)
                )
            cursor.execute("ROLLBACK" if dice.random() < 0.1 else "COMMIT")
            stop.wait(0.005)
