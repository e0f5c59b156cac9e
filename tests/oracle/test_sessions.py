"""A walsender that is left in the middle of streamed and prepared transactions, and one that comes after it.

What waits lies in files, and each session has a decoder of its own, made from the saved state of the one before.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import Decoded, Decoder, StreamState
from support import pg
from support.oracle import Replica, changes_of, kinds, oid_of, runs, same_as_reference, server_rows
from support.resuming import Given, OtherProcess, options_of
from support.streaming import Streaming
from support.streams import summary

pytestmark = [pytest.mark.few_servers, pytest.mark.newest_server]


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    with OtherProcess() as process:
        yield process


def over_sessions(directory: Path, pieces: list[list[pg.Payload]], marked: bool) -> list[Decoded]:
    """A decoder per session; between them only what was written down."""
    outs, text = [], StreamState().to_json()
    for number, piece in enumerate(pieces):
        with Decoder(options_of("files", directory), StreamState.from_json(text)) as decoder:
            if number and marked:
                decoder.start_session()
            for begin in range(0, len(piece), 97):
                part = piece[begin : begin + 97]
                outs.append(decoder.decode([data for _, data in part], lsn=[lsn for lsn, _ in part]))
            text = decoder.state.to_json()
            assert set(decoder.state.spill_files) <= {each.name for each in directory.iterdir()}
        del decoder
        gc.collect()
    assert json.loads(text)["held"] is None
    return outs


def check(
    stream: Streaming, directory: Path, other: OtherProcess, pieces: list[list[pg.Payload]], *tables: str,
    marks: tuple[bool, ...] = (True,),
) -> list[Decoded]:  # fmt: skip
    """Whatever the sessions brought is the server's tables, and what the reference decoder makes of it."""
    whole = [payload for piece in pieces for payload in piece]
    starts = [sum(map(len, pieces[:k])) for k in range(1, len(pieces))]
    for marked in marks:
        expected = same_as_reference(whole, starts if marked else (), transactions="committed")
        outs = over_sessions(directory, pieces, marked)
        replica = Replica().apply(outs, committed=True)
        for table in tables:
            assert replica.rows(oid_of(stream.slot, table)) == server_rows(stream.slot, table), table
        given, one = Given(), Given()
        for out in outs:
            given.add(out)
        for out in expected:
            one.add(out)
        wanted = summary(one.rows, one.tables)
        assert summary(given.rows, given.tables) == wanted
        # The first session here, the others in a process that gets nothing but the pickled state.
        first, options = pieces[0], options_of("private files", directory)
        with Decoder(options) as decoder:
            begun = Given().add(decoder.decode([data for _, data in first], lsn=[lsn for lsn, _ in first]))
            state = pickle.dumps(decoder.state)
        rest = whole[len(first) :]
        sessions = {start - len(first) for start in starts} if marked else set()
        then = other.go_on(
            state, "pickle", options, [data for _, data in rest], [lsn for lsn, _ in rest], sessions
        )
        assert begun.and_then(then) == wanted
    return outs


def test_sent_again_in_other_pieces(stream: Streaming, other: OtherProcess, tmp_path: Path) -> None:
    table = stream.create("cut_otherwise")
    with stream.live() as live:
        stream.run(1, f"INSERT INTO {table} VALUES (-1, 'plain')")
        live.until("C")
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 900)
        live.until("E")
        first = live.payloads
        live.confirm()
    stream.fill(0, table, 10_000, 900)
    with stream.live(work_mem="256kB") as live:
        live.until("E")
        stream.run(0, "COMMIT")
        live.until("c")
        second = live.payloads
    sizes = [[len(part) for part in kinds(piece).split("S")[1:]] for piece in (first, second)]
    assert sizes[0][0] < sizes[1][0], "the pieces are as before"
    assert "B" not in kinds(second).replace("BC", "")
    check(stream, tmp_path, other, [first, second], table, marks=(True, False))


def test_sent_again_as_a_plain_transaction(stream: Streaming, other: OtherProcess, tmp_path: Path) -> None:
    table = stream.create("plain_then")
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 500)
        live.until("E")
        first = live.payloads
    stream.run(0, f"DELETE FROM {table} WHERE id % 2 = 0", "COMMIT")
    with stream.live(streaming="off") as live:
        live.until("C")
        second = live.payloads
    assert runs(kinds(second).replace("BC", "")) == "BRIDC"
    check(stream, tmp_path, other, [first, second], table, marks=(True, False))


def test_never_sent_again_for_it_aborted(stream: Streaming, other: OtherProcess, tmp_path: Path) -> None:
    table, elsewhere = stream.create("gone_then"), stream.create("gone_elsewhere")
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 500)
        live.until("E")
        first = live.payloads
    stream.run(0, "ROLLBACK")
    # The slot's position goes past it, as it does when a client acknowledges what comes behind.
    stream.run(1, f"INSERT INTO {elsewhere} VALUES (1, 'not seen')")
    stream.slot.execute(f"SELECT pg_replication_slot_advance('{stream.slot.name}', pg_current_wal_lsn())")
    with stream.live() as live:
        stream.run(1, f"INSERT INTO {table} VALUES (2, 'seen')")
        live.until("C")
        stream.run(1, f"INSERT INTO {table} VALUES (3, 'seen')")
        live.until("C")
        second = live.payloads
    assert not set("SEA") & set(kinds(second))
    outs = check(stream, tmp_path, other, [first, second], table)
    assert [row["columns"]["id"] for row in changes_of(outs)] == [2, 3]


def test_aborted_between_sessions_with_the_slot_where_it_was(
    stream: Streaming, other: OtherProcess, tmp_path: Path
) -> None:
    """Servers may send what they know to be aborted, with its Abort, or leave it out: both give nothing."""
    table = stream.create("aborted_then")
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 500)
        live.until("E")
        first = live.payloads
    stream.run(0, "ROLLBACK")
    with stream.live() as live:
        stream.run(1, f"INSERT INTO {table} VALUES (2, 'seen')")
        live.until("C")
        second = live.payloads
    check(
        stream,
        tmp_path,
        other,
        [first, second],
        table,
        marks=(True, False) if "S" in kinds(second) else (True,),
    )


def test_savepoint_rolled_back_between_sessions(
    stream: Streaming, other: OtherProcess, tmp_path: Path
) -> None:
    table = stream.create("savepoint_then")
    with stream.live() as live:
        stream.run(0, "BEGIN")
        stream.fill(0, table, 0, 300)
        stream.run(0, "SAVEPOINT s", f"ALTER TABLE {table} ADD COLUMN extra int")
        stream.fill(0, table, 10_000, 600)
        live.until("E")
        first = live.payloads
    stream.run(0, "ROLLBACK TO s")
    stream.fill(0, table, 20_000, 300)
    with stream.live() as live:
        live.until("E")
        stream.run(0, "SAVEPOINT s")
        stream.fill(0, table, 30_000, 600)
        live.until("E")
        second = live.payloads
    stream.run(0, "ROLLBACK TO s", f"ALTER TABLE {table} ADD COLUMN other int")
    stream.run(0, f"UPDATE {table} SET other = id", "COMMIT")
    with stream.live() as live:
        stream.run(1, f"INSERT INTO {table} VALUES (-1, 'after', 5)")
        live.until("C")
        third = live.payloads
    check(stream, tmp_path, other, [first, second, third], table)


def test_several_streams_are_left_open(stream: Streaming, other: OtherProcess, tmp_path: Path) -> None:
    tables = [stream.create(f"left_open_{k}") for k in range(3)]
    with stream.live() as live:
        for k, table in enumerate(tables):
            stream.run(k, "BEGIN")
            stream.fill(k, table, 0, 400)
            live.until("E")
        first = live.payloads
    stream.run(1, "ROLLBACK")
    stream.fill(2, tables[2], 10_000, 100)
    stream.run(2, "COMMIT")
    with stream.live(work_mem="4MB") as live:
        live.until("C")
        stream.run(0, "COMMIT")
        live.until("C")
        second = live.payloads
    assert {"S", "c"} & set(kinds(first)) == {"S"}
    check(stream, tmp_path, other, [first, second], *tables)


def test_prepared_in_one_session_and_ended_in_later_ones(
    two_phase: Streaming, database: pg.Database, other: OtherProcess, tmp_path: Path
) -> None:
    stream = two_phase
    tables = [stream.create(f"prepared_{k}") for k in range(4)]
    gids = [f"{database.name} prepared {k}" for k in range(4)]
    with stream.live() as live:
        for k in (0, 1):
            stream.run(k, "BEGIN")
            stream.fill(k, tables[k], 0, 400)
            live.until("E")
            stream.run(k, f"PREPARE TRANSACTION '{gids[k]}'")
            live.until("p")
        for k in (2, 3):
            stream.run(
                2, "BEGIN", f"INSERT INTO {tables[k]} VALUES ({k}, 'x')", f"PREPARE TRANSACTION '{gids[k]}'"
            )
            live.until("P")
        live.confirm()
        first = live.payloads
    with stream.live() as live:
        stream.run(2, f"COMMIT PREPARED '{gids[0]}'", f"ROLLBACK PREPARED '{gids[3]}'")
        live.until("r")
        live.confirm()
        second = live.payloads
    with stream.live() as live:
        stream.run(2, f"COMMIT PREPARED '{gids[2]}'", f"ROLLBACK PREPARED '{gids[1]}'")
        live.until("r")
        third = live.payloads
    assert [kinds(piece) for piece in (second, third)] == ["Kr", "Kr"]
    outs: Any = check(stream, tmp_path, other, [first, second, third], *tables)
    assert {row["_commit_lsn"] is None for row in changes_of(outs)} == {False}
