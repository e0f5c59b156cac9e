"""Frames and positions as real servers send them: what a frame's LSN means, and what it does not."""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import pgoutput_fast as pgo
from support import pg
from support.oracle import (
    changes_of,
    kinds,
    plain_records,
    same_as_reference,
    same_as_reference_in_both_views,
)
from support.streaming import streaming
from support.walsender import Walsender, walsender

_numbers = itertools.count()


def create(database: pg.Database) -> str:
    name = f"placed{next(_numbers)}"
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, t text)")
    return name


@contextmanager
def replicating(database: pg.Database, slot: pg.Slot, **options: str) -> Iterator[Walsender]:
    with walsender(database.server, database.name, slot.name, slot.options | options) as sender:
        yield sender
        gone(slot, sender)


def gone(slot: pg.Slot, sender: Walsender) -> None:
    """Ends the connection and waits until the server has noticed, which holds the slot until then."""
    sender.close()
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot.name}'"
    deadline = time.monotonic() + 120
    while slot.execute(active)[0][0]:
        assert time.monotonic() < deadline, "the walsender does not go"
        time.sleep(0.01)


def payloads_of(frames: list[bytes]) -> list[pg.Payload]:
    out = pgo.unframe(frames)
    return list(zip(out.lsn.to_pylist(), out.payloads.to_pylist(), strict=True))


def test_unframed_walsender_gives_what_a_peek_gives(database: pg.Database) -> None:
    table = create(database)
    with database.slot(options=pg.all_options(database.version)) as slot:
        slot.execute(
            f"INSERT INTO {table} SELECT n, repeat('x', n) FROM generate_series(1, 30) AS n",
            f"UPDATE {table} SET t = 'y' WHERE id < 5", f"DELETE FROM {table} WHERE id = 7",
        )  # fmt: skip
        peeked = slot.peek()
        with replicating(database, slot) as sender:
            frames = list(sender.until(b"C", kinds(peeked).count("C")))
        out = pgo.unframe(frames)
        (end,) = slot.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0]
    assert out.payloads.to_pylist() == [data for _, data in peeked]
    for (lsn, data), said in zip(peeked, out.lsn.to_pylist(), strict=True):
        assert said == (0 if data[:1] == b"R" else lsn)
    # Not the end of the log, though it is called that: only a keepalive tells it.
    assert out.wal_end.to_pylist() == out.lsn.to_pylist()
    assert 0 < max(out.keepalives.column("wal_end").to_pylist(), default=1) <= end
    sent = out.sent_at.to_pylist()
    assert sent == sorted(sent)
    (now,) = database.execute("SELECT clock_timestamp()")[0]
    assert abs((now - sent[-1]).total_seconds()) < 600
    same_as_reference_in_both_views(payloads_of(frames))


def test_walsender_answers_a_status_with_a_keepalive(database: pg.Database) -> None:
    table = create(database)
    with (
        database.slot(options=pg.all_options(database.version)) as slot,
        replicating(database, slot) as sender,
    ):
        before = pgo.unframe(sender.frames).keepalives.num_rows
        slot.execute(f"INSERT INTO {table} VALUES (1, 'a')")
        sender.until(b"C")
        commit = pgo.decode(*pgo.unframe(sender.frames)[:2]).transactions.column("end_lsn").to_pylist()[-1]
        sender.status(commit, answer=True)
        deadline = time.monotonic() + 120
        while True:
            kept = pgo.unframe(sender.until(b"k", before + 1)).keepalives
            if kept.column("after")[-1].as_py() > 0 and kept.column("wal_end")[-1].as_py() >= commit:
                break
            assert time.monotonic() < deadline
            before = kept.num_rows
        assert kept.column("reply_requested").to_pylist()[-1] is False
        confirmed = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = "
        while int(slot.execute(confirmed + f"'{slot.name}'")[0][0]) < commit:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_walsender_about_to_give_up_asks_for_a_reply(database: pg.Database) -> None:
    """Half of wal_sender_timeout without a word from the client."""
    if database.version < 12:
        pytest.skip("wal_sender_timeout can be set for a session since 12")
    with database.slot() as slot:
        for _ in range(20):
            with walsender(
                database.server, database.name, slot.name, slot.options, wal_sender_timeout="1s"
            ) as sender:
                asked: list[bool] = []
                # On a busy machine the server may wake up when all of its time is over. Then it asks nothing.
                with contextlib.suppress(ConnectionError, RuntimeError):
                    while True not in asked and len(asked) < 100:
                        frames = sender.until(b"k", len(asked) + 1)
                        asked = pgo.unframe(frames).keepalives.column("reply_requested").to_pylist()
                gone(slot, sender)
            if True in asked:
                break
        assert True in asked


def test_frame_has_no_position_where_the_message_has_none(database: pg.Database) -> None:
    """Relation, Type, and a Begin that an Origin follows; the SQL functions give a position there."""
    table, name = create(database), f"positions of {database.name}"
    database.execute("CREATE DOMAIN positive AS int", f"ALTER TABLE {table} ADD COLUMN p positive")
    with database.slot() as slot:
        slot.execute(
            f"INSERT INTO {table} VALUES (1, 'mine', 1)", f"SELECT pg_replication_origin_create('{name}')",
            f"SELECT pg_replication_origin_session_setup('{name}')", f"INSERT INTO {table} VALUES (2, 'theirs', 2)",
            "SELECT pg_replication_origin_session_reset()",
        )  # fmt: skip
        peeked = slot.peek()
        with replicating(database, slot) as sender:
            framed = payloads_of(sender.until(b"C", kinds(peeked).count("C")))
        slot.execute(f"SELECT pg_replication_origin_drop('{name}')")
    assert all(lsn > 0 for lsn, _ in peeked)
    tags = kinds(framed)
    assert {"R", "Y", "O"} <= set(tags)
    for at, (lsn, data) in enumerate(framed):
        nowhere = tags[at] in "RY" or (tags[at] == "B" and tags[at + 1] == "O")
        assert (lsn == 0) == nowhere, (at, data)
    rows = changes_of(same_as_reference(framed))
    assert [row["_lsn"] is None for row in rows] == [False, False]


def test_start_position_is_neither_unique_nor_monotonic(database: pg.Database) -> None:
    """One record can hold many rows; and a transaction that began first can commit last."""
    table = create(database)
    with streaming(database, {"streaming": None} if database.version >= 14 else {}) as stream:
        stream.run(0, "BEGIN", f"INSERT INTO {table} VALUES (-1, 'began first')")
        stream.run(1, f"INSERT INTO {table} VALUES (-2, 'committed first')")
        stream.run(0, "COMMIT")
        stream.run(2, lambda connection: copy_rows(connection, table))
        payloads = stream.peek()
        out = same_as_reference(payloads)
    rows = changes_of(out)
    assert [row["columns"]["id"] for row in rows][:2] == [-2, -1]
    assert rows[0]["_lsn"] > rows[1]["_lsn"]
    assert len({row["_lsn"] for row in rows}) < len(rows)
    assert [row["_seq"] for row in rows] == sorted({row["_seq"] for row in rows})
    identity = [(row["_commit_lsn"], row["_seq"]) for row in rows]
    assert identity == sorted(set(identity))


def copy_rows(connection: Any, table: str) -> None:
    with connection.cursor() as cursor:
        cursor.copy_expert(f"COPY {table} FROM STDIN", io.StringIO("".join(f"{n}\tx\n" for n in range(100))))


def test_what_was_not_acknowledged_is_sent_again(database: pg.Database) -> None:
    """After a crash, too; what ended before the last acknowledged end is not."""
    table = create(database)
    with database.slot() as slot:
        slot.execute(
            f"INSERT INTO {table} VALUES (1, 'acknowledged')", f"INSERT INTO {table} VALUES (2, 'not')"
        )
        first = slot.peek()
        ends = [row["end_lsn"] for row in plain_records(same_as_reference(first)[0].transactions)]
        acknowledged = next(end for end in ends if end is not None)
        if database.version >= 11:
            position = f"{acknowledged >> 32:X}/{acknowledged & 0xFFFFFFFF:X}"
            slot.execute(f"SELECT pg_replication_slot_advance('{slot.name}', '{position}')")
        else:  # reading one change confirms its transaction
            options = ", ".join(pg.literal(word) for item in slot.options.items() for word in item)
            slot.execute(
                f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot.name}', NULL, 1, {options})"
            )
        again = slot.peek()
    assert len(again) < len(first)
    assert [row["columns"]["id"] for row in changes_of(same_as_reference(again))] == [2]
    assert [data for _, data in again if data[:1] == b"I"] == [data for _, data in first if data[:1] == b"I"][
        1:
    ]


def test_keepalive_position_runs_ahead_of_what_was_sent(database: pg.Database) -> None:
    """Work that is not published moves it: acknowledging it is what lets an idle slot go on."""
    database.execute("CREATE TABLE IF NOT EXISTS quiet (id int)", "CREATE TABLE IF NOT EXISTS noisy (t text)")
    with database.slot("FOR TABLE quiet") as slot:
        slot.execute("INSERT INTO quiet VALUES (1)")
        (commit,) = [lsn for lsn, data in slot.peek() if data[:1] == b"C"]
        slot.execute("INSERT INTO noisy SELECT repeat('x', 500) FROM generate_series(1, 100)")
        with replicating(database, slot) as sender:
            sender.until(b"C")
            ends: list[int] = []
            while not ends or ends[-1] <= commit:
                sender.status(commit, answer=True)
                keepalives = pgo.unframe(sender.until(b"k", len(ends) + 1)).keepalives
                ends = keepalives.column("wal_end").to_pylist()
    assert ends[-1] > commit
