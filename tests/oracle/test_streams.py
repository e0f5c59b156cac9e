"""Streamed and two-phase transactions of each server: the committed view is the server's tables.

The servers stream what is larger than 64 kB.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.decoding.result import Decoded
from support import pg
from support.forms import and_slow
from support.oracle import (
    TABLES,
    Replica,
    changes_of,
    decode_in_pieces,
    equal_rows,
    in_apply_order,
    kinds,
    oid_of,
    plain_changes,
    plain_records,
    runs,
    same_as_reference,
    server_rows,
)
from support.streaming import Streaming, streaming
from support.workload import Workload

pytestmark = pytest.mark.few_servers

SEED = os.environ.get("PGOUTPUT_FAST_SEED", "20260403")


_numbers = itertools.count()


# --- segments ---------------------------------------------------------------------------------------------


def test_streamed_transaction_is_segments_and_a_stream_commit(stream: Streaming) -> None:
    table = stream.create("one")
    stream.fill(0, table, 1, 500)
    payloads = stream.peek()
    assert runs(kinds(payloads).replace("BC", "")).startswith("SRIESIE")
    assert kinds(payloads)[-1] == "c"
    (out,) = same_as_reference(payloads)
    rows = changes_of([out])
    (xid,) = stream.slot.execute(f"SELECT DISTINCT xmin::text::int8 FROM {table}")[0]
    assert {(row["_xid"], row["_subxid"], row["_commit_lsn"]) for row in rows} == {(xid, xid, None)}
    starts = [row for row in plain_records(out.transactions) if row["kind"] == "stream_start"]
    assert [row["first_segment"] for row in starts] == [True] + [False] * (len(starts) - 1)
    assert len(starts) > 1
    stream.equal(payloads, table)
    (committed,) = same_as_reference(payloads, transactions="committed")
    (outcome,) = [row for row in plain_records(out.outcomes) if row["txn"] == rows[0]["_txn"]]
    positions = {(row["_commit_lsn"], row["_commit_timestamp"]) for row in changes_of([committed])}
    assert positions == {(outcome["commit_lsn"], outcome["commit_timestamp"])}


def test_streamed_transactions_interleave_and_describe_relations_each_for_itself(stream: Streaming) -> None:
    table = stream.create("interleaved")
    stream.run(0, "BEGIN")
    stream.run(1, "BEGIN")
    for part in range(4):
        stream.fill(0, table, 10_000 * part)
        stream.fill(1, table, 10_000 * part + 5_000)
        stream.run(2, f"INSERT INTO {table} VALUES ({10_000 * part + 9_999}, 'plain')")
    stream.run(1, "COMMIT")
    stream.run(0, "COMMIT")
    payloads = stream.peek()
    (out,) = same_as_reference(payloads)
    order = [row["txn"] for row in plain_records(out.transactions) if row["kind"] == "stream_start"]
    assert len(set(order)) == 2
    assert order != sorted(order)
    assert kinds(payloads).count("R") >= 3
    assert len({each.relation.version for each in out.changes}) == 1
    stream.equal(payloads, table)


def test_prefix_is_the_subtransaction_that_made_the_change(stream: Streaming) -> None:
    table = stream.create("nested")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0)
    stream.run(0, "SAVEPOINT a")
    stream.fill(0, table, 10_000)
    stream.run(0, "SAVEPOINT b")
    stream.fill(0, table, 20_000)
    stream.run(0, "RELEASE a")
    stream.fill(0, table, 30_000)
    stream.run(0, "COMMIT")
    payloads = stream.peek()
    (out,) = same_as_reference(payloads)
    made_by = {int(xid) for (xid,) in stream.slot.execute(f"SELECT DISTINCT xmin::text::int8 FROM {table}")}
    rows = changes_of([out])
    assert {row["_subxid"] for row in rows} == made_by
    assert len(made_by) == 3
    assert {row["_xid"] for row in rows} == {min(made_by)}
    stream.equal(payloads, table)


# --- aborts -----------------------------------------------------------------------------------------------


def test_subtransaction_abort_takes_back_what_was_sent_before_it_and_no_more(stream: Streaming) -> None:
    table = stream.create("aborted_part")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0)
    for part in range(1, 4):
        stream.run(0, "SAVEPOINT s")
        stream.fill(0, table, 10_000 * part)
        # What is decoded before the rollback must be taken back, else it would not even be sent.
        stream.peek()
        stream.run(0, "ROLLBACK TO s" if part != 2 else "RELEASE s")
        stream.fill(0, table, 10_000 * part + 5000)
    stream.run(0, "COMMIT")
    payloads = stream.peek()
    (out,) = same_as_reference(payloads)
    aborts = [row for row in plain_records(out.outcomes) if row["outcome"] == "aborted"]
    assert len(aborts) == 2
    assert all(row["subxid"] is not None for row in aborts)
    # It comes outside of stream blocks.
    assert "EA" in kinds(payloads)
    stream.equal(payloads, table)


def test_abort_of_the_whole_names_the_transaction_twice(stream: Streaming) -> None:
    table = stream.create("aborted_whole")
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 500)
        live.until("E")
        stream.run(0, "ROLLBACK")
        stream.run(1, f"INSERT INTO {table} VALUES (1, 'kept')")
        live.until("C")
    (out,) = same_as_reference(live.payloads)
    (abort,) = [row for row in plain_records(out.transactions) if row["kind"] == "stream_abort"]
    assert abort["xid"] == abort["subxid"]
    (outcome,) = [row for row in plain_records(out.outcomes) if row["outcome"] == "aborted"]
    assert (outcome["txn"], outcome["subxid"], outcome["at_seq"]) == (abort["txn"], None, abort["seq"])
    stream.equal(live.payloads, table)


@pytest.mark.parametrize("option", ["on", "parallel"])
def test_position_of_an_abort_comes_with_parallel_streaming_only(stream: Streaming, option: str) -> None:
    """Not merely with protocol 4: it is told by the message's length."""
    if option == "parallel" and stream.database.version < 16:
        pytest.skip("streaming = parallel exists since 16")
    table = stream.create(f"aborted_at_{option}")
    with stream.live(streaming=option) as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0)
        stream.run(0, "SAVEPOINT s")
        stream.fill(0, table, 10_000, 500)
        live.until("E")
        stream.run(0, "ROLLBACK TO s")
        live.until("A")
        stream.run(0, "ROLLBACK")
        live.until("A")
    length = 25 if option == "parallel" else 9
    assert [len(data) for _, data in live.payloads if data[:1] == b"A"] == [length, length]
    (out,) = same_as_reference(live.payloads)
    aborts = [row for row in plain_records(out.transactions) if row["kind"] == "stream_abort"]
    for abort in aborts:
        assert (abort["lsn"] is not None, abort["timestamp"] is not None) == (length == 25,) * 2
    same_as_reference(live.payloads, transactions="committed")


def test_walsender_gives_no_position_for_what_has_none(stream: Streaming) -> None:
    """Its frames say 0 for a Relation, which the SQL functions do not; a commit's is its end."""
    table = stream.create("walsent")
    with stream.live() as live:
        stream.run(0, f"INSERT INTO {table} VALUES (-1, 'plain')")
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 500)
        live.until("E")
        stream.run(0, "COMMIT")
        live.until("c")
    assert {lsn for lsn, data in live.payloads if data[:1] == b"R"} == {0}
    (out,) = same_as_reference(live.payloads)
    ends = [row for row in plain_records(out.transactions) if row["kind"] in ("commit", "stream_commit")]
    assert [live.payloads[row["seq"]][0] for row in ends] == [row["end_lsn"] for row in ends]
    assert all(row["_lsn"] > 0 for row in changes_of([out]))
    stream.equal(live.payloads, table)


# --- DDL in a stream --------------------------------------------------------------------------------------


def test_ddl_of_a_rolled_back_subtransaction_is_forgotten(stream: Streaming) -> None:
    table = stream.create("rolled_back_ddl")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0)
    stream.run(0, "SAVEPOINT s", f"ALTER TABLE {table} ADD COLUMN extra int")
    stream.fill(0, table, 10_000)
    stream.run(0, "ROLLBACK TO s")
    stream.fill(0, table, 20_000)
    stream.run(0, "COMMIT")
    stream.run(1, f"INSERT INTO {table} VALUES (-1, 'after')")
    payloads = stream.peek()
    stream.equal(payloads, table)
    (out,) = same_as_reference(payloads, transactions="committed")
    assert {len(each.relation.columns) for each in out.changes} == {2}


def test_ddl_of_an_open_stream_is_not_seen_by_others(stream: Streaming) -> None:
    """What is learnt inside of a streamed transaction is its own until it commits."""
    table, other = stream.create("open_ddl"), stream.create("bystander")
    stream.run(0, "BEGIN", f"ALTER TABLE {table} ADD COLUMN extra int")
    stream.fill(0, table, 0, 400)
    stream.run(1, f"INSERT INTO {other} VALUES (1, 'x')")
    stream.fill(0, table, 10_000, 400)
    stream.run(0, "COMMIT")
    stream.run(1, f"INSERT INTO {table} VALUES (-1, 'after', 5)", f"INSERT INTO {other} VALUES (2, 'x')")
    stream.equal(stream.peek(), table, other)


def test_ddl_in_mid_stream_makes_versions_within_one_transaction(stream: Streaming) -> None:
    table = stream.create("stream_ddl")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0)
    stream.run(0, f"ALTER TABLE {table} ADD COLUMN extra int")
    stream.fill(0, table, 10_000)
    stream.run(0, f"ALTER TABLE {table} DROP COLUMN t", f"UPDATE {table} SET extra = id WHERE id % 10 = 0")
    stream.run(0, f"INSERT INTO {table} SELECT n, n FROM generate_series(20000, 21500) AS n", "COMMIT")
    stream.run(1, f"DELETE FROM {table} WHERE id < 100")
    payloads = stream.peek()
    stream.equal(payloads, table)
    (out,) = same_as_reference(payloads)
    columns = [[column.name for column in each.relation.columns] for each in out.changes]
    assert columns == [["id", "t"], ["id", "t", "extra"], ["id", "extra"]]


# --- messages, origins, truncates -------------------------------------------------------------------------


def test_messages_within_and_between_stream_blocks(stream: Streaming) -> None:
    """A rolled-back savepoint's transactional message carries the top xid: the wire cannot tell it from a kept one."""
    table = stream.create("talkative")
    stream.run(0, "BEGIN", "SELECT pg_logical_emit_message(true, 'in', 'first')")
    stream.fill(0, table, 0)
    stream.run(0, "SELECT pg_logical_emit_message(false, 'out', 'between')", "SAVEPOINT s")
    stream.run(0, "SELECT pg_logical_emit_message(true, 'in', 'rolled back')")
    stream.fill(0, table, 10_000)
    stream.run(0, "ROLLBACK TO s")
    stream.fill(0, table, 20_000)
    stream.run(0, "COMMIT")
    stream.run(1, "BEGIN", "SELECT pg_logical_emit_message(true, 'in', 'aborted')")
    stream.fill(1, table, 30_000, 400)
    stream.run(1, "ROLLBACK")
    payloads = stream.peek()
    stream.equal(payloads, table)
    (sent,) = same_as_reference(payloads)
    (committed,) = same_as_reference(payloads, transactions="committed")
    said = [row["content"] for row in plain_records(sent.messages)]
    kept = [row["content"] for row in plain_records(committed.messages)]
    assert {b"first", b"between"} <= set(said)
    assert b"aborted" not in kept
    assert {b"first", b"between"} <= set(kept)
    (top,) = {row["_xid"] for row in changes_of([committed])}
    assert {row["xid"] for row in plain_records(committed.messages) if row["transactional"]} == {top}


def test_origin_in_a_stream_has_no_xid_and_comes_once(stream: Streaming, database: pg.Database) -> None:
    table, name = stream.create("replicated_stream"), f"streaming {database.name}"
    stream.run(
        0, f"SELECT pg_replication_origin_create('{name}')", f"SELECT pg_replication_origin_session_setup('{name}')",
        "BEGIN", "SELECT pg_replication_origin_xact_setup('0/FEED', '2020-01-01 00:00:00+00')",
    )  # fmt: skip
    stream.fill(0, table, 0, 500)
    stream.run(0, "COMMIT", "SELECT pg_replication_origin_session_reset()")
    payloads = stream.peek()
    assert kinds(payloads).count("O") == 1
    assert kinds(payloads).count("S") > 1
    stream.equal(payloads, table)
    (out,) = same_as_reference(payloads)
    (commit,) = [row for row in plain_records(out.transactions) if row["kind"] == "stream_commit"]
    assert commit["origin"] == name
    stream.slot.execute(f"SELECT pg_replication_origin_drop('{name}')")


def test_truncate_in_a_rolled_back_subtransaction_truncates_nothing(stream: Streaming) -> None:
    table = stream.create("not_truncated")
    stream.run(0, f"INSERT INTO {table} VALUES (-1, 'before')", "BEGIN")
    stream.fill(0, table, 0)
    stream.run(0, "SAVEPOINT s", f"TRUNCATE {table}")
    stream.fill(0, table, 10_000)
    stream.run(0, "ROLLBACK TO s")
    stream.fill(0, table, 20_000)
    stream.run(0, "COMMIT")
    payloads = stream.peek()
    stream.equal(payloads, table)
    (committed,) = same_as_reference(payloads, transactions="committed")
    assert committed.truncates.num_rows == 0


# --- two phases -------------------------------------------------------------------------------------------


def test_prepared_transactions_commit_or_not_long_after(two_phase: Streaming, database: pg.Database) -> None:
    stream, table = two_phase, two_phase.create("prepared")
    gids = [f"{database.name} {name}" for name in ("kept", "dropped", "kept too", "open")]
    for number, gid in enumerate(gids):
        stream.run(
            0, "BEGIN", f"INSERT INTO {table} VALUES ({number}, 'prepared')", f"PREPARE TRANSACTION '{gid}'"
        )
    stream.run(1, f"INSERT INTO {table} VALUES (100, 'plain')")
    stream.run(
        1, f"ROLLBACK PREPARED '{gids[1]}'", f"COMMIT PREPARED '{gids[2]}'", f"COMMIT PREPARED '{gids[0]}'"
    )
    payloads = stream.peek()
    assert runs(kinds(payloads).replace("R", "").replace("BC", "")) == "bIPbIPbIPbIPBICrKKK".replace(
        "KKK", "K"
    )
    (out,) = same_as_reference(payloads)
    boundaries = plain_records(out.transactions)
    prepares = {row["gid"]: row for row in boundaries if row["kind"] == "prepare"}
    ends = {row["gid"]: row for row in boundaries if row["kind"] in ("commit_prepared", "rollback_prepared")}
    assert ends.keys() == set(gids[:3])
    assert {gid: row["kind"] for gid, row in ends.items()}[gids[1]] == "rollback_prepared"
    for gid, end in ends.items():
        assert (end["txn"], end["xid"]) == (prepares[gid]["txn"], prepares[gid]["xid"])
        assert end["prepare_timestamp"] == prepares[gid]["timestamp"]
    assert ends[gids[1]]["lsn"] == prepares[gids[1]]["end_lsn"]
    stream.equal(payloads, table)
    committed = same_as_reference(payloads, transactions="committed")
    in_order = [row["columns"]["id"] for row in in_apply_order(plain_changes(committed), committed=True)]
    assert in_order == [100, 2, 0]
    stream.run(1, f"ROLLBACK PREPARED '{gids[3]}'")


def test_streamed_and_prepared(two_phase: Streaming, database: pg.Database) -> None:
    stream, table = two_phase, two_phase.create("streamed_prepared")
    gids = [f"{database.name} streamed {name}" for name in ("kept", "dropped")]
    with stream.live() as live:
        for number, gid in enumerate(gids):
            stream.run(number, "BEGIN")
            stream.fill(number, table, 100_000 * number, 400)
            stream.run(number, "SAVEPOINT s")
            stream.fill(number, table, 100_000 * number + 50_000, 400)
            live.until("E")
            stream.run(number, "ROLLBACK TO s", f"PREPARE TRANSACTION '{gid}'")
            live.until("p")
        stream.run(2, f"INSERT INTO {table} VALUES (-1, 'plain')")
        stream.run(2, f"COMMIT PREPARED '{gids[0]}'", f"ROLLBACK PREPARED '{gids[1]}'")
        live.until("r")
    assert kinds(live.payloads).endswith("pBRICKr")
    stream.equal(live.payloads, table)
    (out,) = same_as_reference(live.payloads)
    whole = [row["outcome"] for row in plain_records(out.outcomes) if row["subxid"] is None]
    assert whole == ["committed", "committed", "aborted"]


def test_prepare_is_sent_at_any_protocol_version_once_the_slot_wants_it(
    two_phase: Streaming, database: pg.Database
) -> None:
    stream, table, gid = two_phase, two_phase.create("old_protocol"), f"{database.name} old"
    stream.run(
        0,
        "BEGIN",
        f"INSERT INTO {table} VALUES (1, 'x')",
        f"PREPARE TRANSACTION '{gid}'",
        f"COMMIT PREPARED '{gid}'",
    )
    payloads = stream.peek({"proto_version": "1", "streaming": None, "messages": None})
    assert kinds(payloads) == "bRIPK"
    stream.equal(payloads, table)


def test_without_two_phase_a_prepared_transaction_is_a_plain_one_at_its_commit(
    stream: Streaming, database: pg.Database
) -> None:
    table, gid = stream.create("one_phase"), f"{database.name} one"
    stream.run(0, "BEGIN", f"INSERT INTO {table} VALUES (1, 'x')", f"PREPARE TRANSACTION '{gid}'")
    assert "I" not in kinds(stream.peek())
    stream.run(0, f"COMMIT PREPARED '{gid}'")
    payloads = stream.peek()
    assert kinds(payloads).endswith("BRIC")
    stream.equal(payloads, table)


# --- sessions ---------------------------------------------------------------------------------------------


def one_after_the_other(*pieces: list[pg.Payload]) -> tuple[list[pg.Payload], list[int]]:
    """The payloads of several peeks, and where each but the first begins."""
    whole, starts = [], []
    for piece in pieces:
        starts.append(len(whole))
        whole += piece
    return whole, starts[1:]


def test_new_session_sends_an_open_stream_again_from_its_first_change(stream: Streaming) -> None:
    table = stream.create("sent_again")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0, 500)
    first = stream.peek()
    assert kinds(first)[-1] == "E"
    stream.fill(0, table, 10_000, 500)
    stream.run(0, "COMMIT")
    second = stream.peek()
    assert kinds(second)[-1] == "c"
    payloads, sessions = one_after_the_other(first, second)
    (_, out) = same_as_reference(payloads, sessions)
    assert plain_records(out.outcomes) != []
    outs = same_as_reference(payloads, sessions, transactions="committed")
    assert Replica().apply(outs[1:], committed=True).rows(oid_of(stream.slot, table)) == server_rows(
        stream.slot, table
    )
    assert outs[0].changes == []
    voided = [row for each in outs for row in plain_records(each.outcomes) if row["outcome"] == "aborted"]
    assert [row["at_seq"] for row in voided] == [len(first)]


def test_new_session_without_a_mark_shows_itself_by_a_first_segment(stream: Streaming) -> None:
    table = stream.create("unmarked")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0, 500)
    first = stream.peek()
    stream.run(0, "COMMIT")
    second = stream.peek()
    outs = same_as_reference([*first, *second], transactions="committed")
    assert Replica().apply(outs, committed=True).rows(oid_of(stream.slot, table)) == server_rows(
        stream.slot, table
    )


def test_stream_that_aborted_between_sessions_is_never_heard_of_again(stream: Streaming) -> None:
    table = stream.create("never_again")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0, 500)
    first = stream.peek()
    stream.run(0, "ROLLBACK")
    stream.run(1, f"INSERT INTO {table} VALUES (1, 'kept')", "SELECT pg_sleep(0)")
    # What is confirmed is not decoded again: the rolled-back transaction lies before.
    stream.slot.execute(f"SELECT pg_replication_slot_advance('{stream.slot.name}', pg_current_wal_lsn())")
    stream.run(1, f"INSERT INTO {table} VALUES (2, 'later')")
    second = stream.peek()
    assert "A" not in kinds(second)
    payloads, sessions = one_after_the_other(first, second)
    outs = same_as_reference(payloads, sessions, transactions="committed")
    assert [row["columns"]["id"] for row in changes_of(outs)] == [2]
    same_as_reference(payloads, sessions)


def test_what_was_streamed_may_come_again_as_a_plain_transaction(stream: Streaming) -> None:
    """A smaller transaction, or one whose session does not stream, is B..C."""
    table = stream.create("plain_again")
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0, 500)
    first = stream.peek()
    stream.run(0, "COMMIT")
    second = stream.peek({"streaming": "off"})
    assert not set("SEcA") & set(kinds(second))
    payloads, sessions = one_after_the_other(first, second)
    for marks in (sessions, []):  # a B of an open stream's xid says the same as a mark
        outs = same_as_reference(payloads, marks, transactions="committed")
        found = Replica().apply(outs, committed=True).rows(oid_of(stream.slot, table))
        assert found == server_rows(stream.slot, table)
        same_as_reference(payloads, marks)


def test_prepared_transaction_outlives_the_session(two_phase: Streaming, database: pg.Database) -> None:
    stream, table, gid = two_phase, two_phase.create("outliving"), f"{database.name} outliving"
    stream.run(0, "BEGIN")
    stream.fill(0, table, 0, 400)
    stream.run(0, f"PREPARE TRANSACTION '{gid}'")
    first = stream.peek()
    # Confirmed by reading, so that the next session begins after the prepare.
    arguments = ", ".join(pg.literal(word) for item in stream.slot.options.items() for word in item)
    stream.slot.execute(
        f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{stream.slot.name}', NULL, NULL, {arguments})"
    )
    stream.run(0, f"COMMIT PREPARED '{gid}'")
    second = stream.peek()
    assert kinds(second) == "K"
    payloads, sessions = one_after_the_other(first, second)
    outs = same_as_reference(payloads, sessions, transactions="committed")
    assert Replica().apply(outs, committed=True).rows(oid_of(stream.slot, table)) == server_rows(
        stream.slot, table
    )
    same_as_reference(payloads, sessions)


# --- everything at once -----------------------------------------------------------------------------------


def random_work(stream: Streaming, rng: random.Random, version: int, gid: str | None) -> list[Workload]:
    """Three sessions, each on tables of its own, in turns that chance decides; the last work is committed."""
    works = [
        Workload(f"w{number}_{next(_numbers)}", str(rng.random()), version, rows=25) for number in range(3)
    ]
    for work in works:
        work.truncates = False  # rolled back, it can make the servers fail: "could not map filenode"
        stream.slot.execute(work.schema)
    pending: list[list[pg.Statement]] = [[] for _ in works]
    for turn in range(12):
        for number, work in enumerate(works):
            ends = ["COMMIT", "COMMIT", "ROLLBACK"] if turn < 11 else ["COMMIT"]
            pending[number] += transaction(work, rng, rng.choice(ends), gid and f"{gid} {number} {turn}")
    while any(pending):
        number = rng.choice([number for number, statements in enumerate(pending) if statements])
        for _ in range(rng.randint(1, 6)):
            if pending[number]:
                stream.run(number, pending[number].pop(0))
    return works


def transaction(work: Workload, rng: random.Random, end: str, gid: str | None) -> Iterator[pg.Statement]:
    """With `gid`, some end in two phases."""
    statements = list(work.transaction(end))
    yield from statements[:-1]
    if gid and rng.random() < 0.4:
        yield f"PREPARE TRANSACTION '{gid}'"
        yield f"{end} PREPARED '{gid}'"
    else:
        yield statements[-1]


@pytest.mark.parametrize(
    ("phases", "binary"),
    and_slow([(1, False), (2, True)], [(1, True), (2, False)]),
    ids=["1-text", "2-binary", "1-binary", "2-text"],
)
def test_random_streams_give_the_servers_tables_however_they_are_cut(
    database: pg.Database, phases: int, binary: bool
) -> None:
    if database.version < 13 + phases:
        pytest.skip("streamed since 14, in two phases since 15")
    seed = f"{SEED} {phases} {binary}"
    print(f"seed {seed} (PGOUTPUT_FAST_SEED)")
    rng = random.Random(seed)
    options = {"binary": "true"} if binary else {}
    gid = f"{database.name} {binary}" if phases == 2 else None
    with streaming(database, options, two_phase=phases == 2) as stream:
        works = random_work(stream, rng, database.version, gid)
        tables = [table for work in works for table in work.tables]
        payloads = stream.peek()
        assert {"S", "E", "c"} <= set(kinds(payloads))
        assert ("K" in kinds(payloads)) == (phases == 2)
        stream.equal(payloads, *tables)
    expected = {view: decode_in_pieces(payloads, transactions=view) for view in ("as_sent", "committed")}
    for view, whole in expected.items():
        for pieces in (7, 150):
            cuts = rng.sample(range(1, len(payloads)), min(pieces, len(payloads) - 1))
            outs = decode_in_pieces(payloads, cuts, transactions=view)
            equal_rows(changes(outs), changes(whole), "changes")
            for name in TABLES:
                found, wanted = (
                    [row for out in those for row in plain_records(getattr(out, name))]
                    for those in (outs, whole)
                )
                equal_rows(found, wanted, name)
    tagged_in_any_order(payloads, rng)


def changes(outs: list[Decoded]) -> list[dict[str, Any]]:
    """By message, whatever it was released with."""
    return sorted(plain_changes(outs), key=lambda row: (row["_seq"], row["relation"][0]))


def tagged_in_any_order(payloads: list[pg.Payload], rng: random.Random) -> None:
    """Tagged payloads, shuffled and split anywhere, decode to the same rows."""
    lsns, datas = [lsn for lsn, _ in payloads], [data for _, data in payloads]
    expected = in_apply_order(plain_changes([pgo.decode(datas, lsn=lsns)]))
    tagged, state = pgo.tag(datas, lsn=lsns)
    order = list(range(tagged.num_rows))
    rng.shuffle(order)
    edges = sorted([0, len(order), *rng.sample(range(len(order)), 5)])
    outs = []
    for start, end in itertools.pairwise(edges):
        part = tagged.take(pa.array(order[start:end], pa.int64()))
        outs.append(pgo.decode_tagged(part, state.catalog))
    assert in_apply_order(plain_changes(outs)) == expected
