"""`Decoded.position` and `follow(after=)`: what comes after each position, and kills at any moment."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import CaptureError, create_slot, find_slot
from support import pg
from support.capturing import (
    Writers,
    drop_when_free,
    freed,
    now,
    stoppable,
    streaming_dsn,
    wait_until,
)
from support.capturing import slot as slot
from support.code_blocks import blocks_of
from support.paths import DOCS

COMMITTED = pgo.Options(transactions="committed")
KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "6"))


# ---- texts -------------------------------------------------------------------------------------------------------


def test_a_position_is_its_text() -> None:
    texts = [
        "0/0:0",
        "0/64:0",
        "0/64:2",
        "0/64:2:::0/60",
        "0/64:2:::0/61",
        "0/64:3",
        "0/64:7:0/6C",
        "0/64:7:0/70",
        "0/64:7:0/70:0/6E",
        "1/0:0",
    ]
    positions = [pgo.Position.parse(text) for text in texts]
    assert [str(position) for position in positions] == texts
    assert [pickle.loads(pickle.dumps(position)) for position in positions] == positions
    assert sorted(random.Random(1).sample(positions, len(positions))) == positions
    assert len(set(positions)) == len(positions)
    assert positions[0] <= positions[0] < positions[1]


@pytest.mark.parametrize(
    "text",
    ["", "0/1", "0/1:", ":1", "0/1:-1", "0/1:x", "0/1:1:2", "0/1:\u0661", "0/1:1:::::", "0/1:" + "9" * 20],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"str\(decoded.position\)") as error:
        pgo.Position.parse(text)
    assert error.value.__cause__ is None
    with pytest.raises(TypeError, match="not a int"):
        pgo.Position.parse(5)  # type: ignore[arg-type]


@pytest.mark.newest_server
def test_what_after_may_not_be(database: pg.Database, slot: str) -> None:
    after = pgo.Position.parse("0/64:2")
    with pytest.raises(ValueError, match="transactions='committed'"):
        pgo.follow(database.dsn, slot, ["captured"], pgo.Options(), after=after)
    with pytest.raises(ValueError, match="not a position"):
        pgo.follow(database.dsn, slot, ["captured"], after="yesterday")
    with pytest.raises(TypeError, match="after must be a Position, not int"):
        pgo.follow(database.dsn, slot, ["captured"], after=5)  # type: ignore[arg-type]
    assert pgo.decode([]).position is None


# ---- what comes after a position -----------------------------------------------------------------------------------


def _events(decoded: pgo.Decoded) -> tuple[list[Any], Counter[Any]]:
    """(rows in the order in which to apply them, logical messages)."""
    rows = [
        (row["_commit_lsn"], row["_seq"], each.relation.name, row["_change_type"], row["id"])
        for each in decoded.changes
        for row in each.batch.to_pylist()
    ]
    rows.sort(key=lambda row: row[:3])
    messages = decoded.messages.select(["prefix", "content"]).to_pylist()
    return [(row[0], *row[2:]) for row in rows], Counter(
        (each["prefix"], each["content"]) for each in messages if each["prefix"] != "rolled back"
    )


def _work(database: pg.Database) -> None:
    def message(transactional: bool, prefix: str, text: str) -> str:
        if database.version < 14:
            return "SELECT 1"
        return f"SELECT pg_logical_emit_message({transactional}, '{prefix}', '{text}')"

    def rows(table: str, first: int, last: int) -> str:
        columns, values = {"counted": ("id, n", "g, 1"), "noted": ("id, v", "g, 'v'")}[table]
        return f"INSERT INTO {table} ({columns}) SELECT {values} FROM generate_series({first}, {last}) g"

    with database.session() as connection, connection.cursor() as cursor:
        for transaction in [
            [rows("counted", 1, 3)],
            [
                rows("counted", 10, 700),
                message(True, "first", "a"),
                message(True, "first", "b"),
                "SAVEPOINT s",
                rows("counted", 1000, 1900),
                message(True, "rolled back", "c"),
                "ROLLBACK TO SAVEPOINT s",
                rows("noted", 1, 400),
                message(False, "alone", "d"),
                message(True, "last", "e"),
            ],
            [rows("counted", 5000, 5002)],
            ["TRUNCATE counted, noted", rows("noted", 1, 500), "TRUNCATE noted", rows("noted", 1, 2)],
            [rows("counted", 1, 900), "UPDATE counted SET n = n + 1 WHERE id % 2 = 0", rows("noted", 3, 300)],
            [message(True, "only", str(number)) for number in range(700)],
            [rows("counted", 7000, 7001)],
        ]:
            cursor.execute("BEGIN")
            for statement in transaction:
                cursor.execute(statement)
            cursor.execute("COMMIT")
            cursor.execute(message(False, "between", str(len(transaction))))
        cursor.execute(rows("counted", 9000, 9000))  # the server writes messages only together with a commit


@pytest.mark.newest_server
@pytest.mark.few_servers
@pytest.mark.parametrize("streams", [True, False])
def test_after_each_position_comes_the_rest(
    database: pg.Database, slot: str, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the server sends the transactions then, and however they are cut."""
    if streams and database.version < 14:
        pytest.skip("the server does not stream")
    _work(database)
    until = now(database)
    overrides = {"messages": "true"} if database.version >= 14 else {}

    def follow(rows: int, streams: bool, after: str | None = None) -> list[pgo.Decoded]:
        monkeypatch.setattr("pgoutput_fast.transactions.view._PIECE_ROWS", rows)
        monkeypatch.setattr("pgoutput_fast.transactions.reorder_buffer._SMALL_ROWS", rows // 2)
        monkeypatch.setattr("pgoutput_fast.live.reader.RECEIVED_BYTES", 100 * rows)
        more = {} if streams or database.version < 14 else {"streaming": None}
        dsn = streaming_dsn(database) if streams else database.dsn
        following = pgo.follow(
            dsn, slot, ["captured"], after=after, until_lsn=until, overrides={**overrides, **more}
        )
        return [decoded for decoded, _ in following]

    pieces = follow(97, streams)
    events = [_events(piece) for piece in pieces]
    positions = [piece.position for piece in pieces]
    assert len(pieces) > 8
    assert all(a < b for a, b in pairwise(positions)), positions  # type: ignore[operator]
    parts = [piece for piece in pieces if not piece.is_complete]
    assert len(parts) > 4
    assert pieces[-1].is_complete
    counts: Counter[int] = Counter()
    for piece, position in zip(pieces, positions, strict=True):
        assert position is not None
        for lsn, _, change, _ in _events(piece)[0]:
            counts[lsn] += change != "truncate"
        if not piece.is_complete:
            assert position.slot_lsn is None
    for k in random.Random(database.version).sample(range(len(positions)), 8):
        position = positions[k]
        rest = follow(
            random.Random(k).choice([30, 97, 1 << 15]), random.Random(k).random() < 0.5, str(position)
        )
        found = [_events(piece) for piece in rest]
        assert [row for rows, _ in found for row in rows] == [
            row for rows, _ in events[k + 1 :] for row in rows
        ], position
        assert sum((messages for _, messages in found), Counter()) == sum(
            (messages for _, messages in events[k + 1 :]), Counter()
        ), position
        assert all(piece.position > position for piece in rest), position  # type: ignore[operator]
        assert not rest or rest[-1].position.commit_lsn == positions[-1].commit_lsn  # type: ignore[union-attr]


# ---- slots -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(servers: pg.Servers) -> Iterator[pg.Database]:
    """A database of the newest version whose server the test may stop, with a slot `own` over two tables."""
    with stoppable(servers, "own") as database:
        yield database


def _confirmed(database: pg.Database) -> int:
    found = find_slot(database.dsn, "own")
    assert found is not None
    return found.confirmed_flush_lsn or 0


def test_a_slot_that_is_past_the_position(own: pg.Database) -> None:
    positions: list[str] = []
    for number in (1, 2):
        own.execute(f"INSERT INTO noted VALUES ({number}, 'a')")
        after = positions[-1] if positions else None
        for decoded, acknowledge in pgo.follow(own.dsn, "own", ["captured"], after=after, until_lsn="now"):
            positions.append(str(decoded.position))
            acknowledge()
    assert len(positions) == 2
    with pytest.raises(
        CaptureError, match=rf"does not send again what comes after position {positions[0]}.*load"
    ):
        next(pgo.follow(own.dsn, "own", ["captured"], after=positions[0]))
    assert not list(pgo.follow(own.dsn, "own", ["captured"], after=positions[1], until_lsn="now"))
    later = str(pgo.Position(now(own) + (1 << 30), 1, now(own) + (1 << 31)))
    with pytest.raises(CaptureError, match="restored the server from an older copy"):
        next(pgo.follow(own.dsn, "own", ["captured"], after=later))
    drop_when_free(own.dsn, "own")
    with pytest.raises(CaptureError, match="slot own is gone"):
        next(pgo.follow(own.dsn, "own", ["captured"], after=positions[1]))
    assert find_slot(own.dsn, "own") is None


def test_an_idle_slot_of_a_reader_of_positions(own: pg.Database) -> None:
    """It goes on only with what is acknowledged, and so no position becomes too old."""
    own.execute("INSERT INTO noted VALUES (1, 'a')")
    stop, given, reached = threading.Event(), [], []

    def read() -> None:
        for decoded, acknowledge in pgo.follow(own.dsn, "own", ["captured"], stop=stop):
            reached.append(decoded.position)
            given.append(len(decoded))
            acknowledge()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        wait_until(lambda: given == [1] and _confirmed(own) == reached[0].slot_lsn)
        own.execute("CREATE TABLE unpublished AS SELECT 1 AS x")
        time.sleep(1)
        assert _confirmed(own) == reached[0].slot_lsn
        own.execute(
            "CREATE TABLE large AS SELECT repeat(md5(g::text), 20) AS x FROM generate_series(1, 30000) g"
        )
        wait_until(lambda: given == [1, 0] and _confirmed(own) == reached[1].slot_lsn)
        assert reached[1] > reached[0]
        own.execute("CREATE TABLE small AS SELECT 1 AS x")
        own.server.stop("fast")  # it waits for all clients to confirm
        wait_until(lambda: len(given) > 2)
    finally:
        stop.set()
        thread.join(120)
    own.server.start()
    own.execute("INSERT INTO noted VALUES (2, 'b')")
    rest = pgo.follow(own.dsn, "own", ["captured"], after=reached[-1], until_lsn="now")
    assert [_events(decoded)[0][0][1:] for decoded, _ in rest] == [("noted", "insert", 2)]


@pytest.mark.parametrize("copied", [False, True])
def test_a_position_that_is_read_late(own: pg.Database, copied: bool) -> None:
    """Another thread or process may ask for it when the slot has gone on with the server's log."""
    own.execute("INSERT INTO noted VALUES (1, 'a')")
    stop = threading.Event()
    following = pgo.follow(own.dsn, "own", ["captured"], stop=stop)
    decoded, acknowledge = next(following)
    thread = threading.Thread(target=lambda: list(following))
    thread.start()
    try:
        acknowledge()
        own.execute("CREATE TABLE unpublished AS SELECT 1 AS x", "DROP TABLE unpublished")
        end = now(own)
        wait_until(lambda: _confirmed(own) >= end)
        if copied:
            decoded = pickle.loads(pickle.dumps(decoded))
        position = decoded.position
    finally:
        stop.set()
        thread.join(120)
    own.execute("INSERT INTO noted VALUES (2, 'b')")
    rest = list(pgo.follow(own.dsn, "own", ["captured"], after=position, until_lsn="now"))
    assert [_events(decoded)[0][0][1:] for decoded, _ in rest] == [("noted", "insert", 2)]


def test_small_transactions_in_the_batch_of_a_large_one(
    own: pg.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end in later pieces than the large one; a prepared one is not confirmed away."""
    monkeypatch.setattr("pgoutput_fast.transactions.view._PIECE_ROWS", 200)
    monkeypatch.setattr("pgoutput_fast.transactions.view._LEAST_COMPLETE", 8)
    monkeypatch.setattr("pgoutput_fast.transactions.view._SHORT_MESSAGES", 100)
    monkeypatch.setattr("pgoutput_fast.transactions.reorder_buffer._SMALL_ROWS", 100)
    monkeypatch.setattr("pgoutput_fast.live.reader.RECEIVED_BYTES", 1 << 16)
    create_slot(own.dsn, "two", two_phase=True)
    own.execute("INSERT INTO counted SELECT g, 1, repeat('y', 100) FROM generate_series(1, 3000) g")
    names = [f"g{number}" for number in range(6)]
    for number, name in enumerate(names):
        own.execute(*[f"INSERT INTO noted VALUES ({100 * number + k}, 'v')" for k in range(30)])
        own.execute(f"BEGIN; INSERT INTO noted VALUES ({9000 + number}, 'p'); PREPARE TRANSACTION '{name}'")
    seen: Counter[Any] = Counter()
    after = None
    for end in ("PREPARE", "COMMIT"):
        if end == "COMMIT":
            own.execute(*[f"COMMIT PREPARED '{name}'" for name in names])
        dsn = f"{own.dsn} options='-c logical_decoding_work_mem=64MB'"
        for decoded, acknowledge in pgo.follow(dsn, "two", ["captured"], after=after, until_lsn="now"):
            seen.update(_events(decoded)[0])
            after = decoded.position
            acknowledge()
    assert set(seen.values()) == {1}
    assert sorted(id for _, name, _, id in seen if name == "noted") == sorted(
        id for (id,) in own.execute("SELECT id FROM noted")
    )
    assert after is not None
    assert after.slot_lsn == freed(own.dsn, "two").confirmed_flush_lsn


def test_a_large_transaction_first(own: pg.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last piece acknowledges it, also if it has nothing for the reader, and its position is not too old."""
    monkeypatch.setattr("pgoutput_fast.transactions.view._PIECE_ROWS", 200)
    monkeypatch.setattr("pgoutput_fast.transactions.reorder_buffer._SMALL_ROWS", 100)
    options = pgo.Options(transactions="committed", tables=["public.noted"])
    own.execute(
        "BEGIN; INSERT INTO noted SELECT g, 'v' FROM generate_series(1, 1000) g; "
        "INSERT INTO counted SELECT g, 1 FROM generate_series(1, 1000) g; COMMIT"
    )
    seen: list[int] = []
    after = None
    while True:
        for decoded, acknowledge in pgo.follow(
            streaming_dsn(own), "own", ["captured"], options, after=after, until_lsn="now"
        ):
            seen += [id for *_, id in _events(decoded)[0]]
            after = str(decoded.position)
            acknowledge()
            break  # as if it was killed after each piece
        else:
            break
        if decoded.is_complete:
            assert freed(own.dsn, "own").confirmed_flush_lsn == decoded.position.slot_lsn > 0  # type: ignore[union-attr, operator]
    assert seen == list(range(1, 1001))


def test_a_transaction_that_lacks_what_was_given(database: pg.Database, slot: str) -> None:
    """A slot that somebody has moved within a prepared transaction sends less of it."""
    database.execute("INSERT INTO noted VALUES (1, 'a'), (2, 'b')", "INSERT INTO noted VALUES (3, 'c')")
    (first, *_), *_ = pgo.follow(database.dsn, slot, ["captured"], until_lsn="now")
    lsns = sorted({lsn for lsn, *_ in _events(first)[0]})
    with pytest.raises(
        CaptureError, match=r"sent 2 changes of the transaction at .*, but 5 are before position"
    ):
        list(pgo.follow(database.dsn, slot, ["captured"], after=pgo.Position(lsns[0], 5), until_lsn="now"))


# ---- kills -------------------------------------------------------------------------------------------------------


_LARGE = 70_000  # rows; a piece has some 32,000


class _LargeTransactions(threading.Thread):
    """Transactions that come in several pieces. They wait for a reader that is far behind."""

    def __init__(self, database: pg.Database) -> None:
        super().__init__()
        self._database = database
        self.stopped = threading.Event()

    def run(self) -> None:
        first = 0
        while not self.stopped.wait(0.1):
            found = find_slot(self._database.dsn, "copy")
            if found is not None and now(self._database) - (found.confirmed_flush_lsn or 0) < 1 << 26:
                rows = f"SELECT g, 'v' FROM generate_series({first}, {first + _LARGE - 1}) g"
                self._database.execute(f"INSERT INTO noted {rows}")
                first += _LARGE


@pytest.mark.slow
@pytest.mark.few_servers
@pytest.mark.newest_server
def test_the_recipe_killed_at_random_moments(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """The program of docs/follow.md. The full form takes PGOUTPUT_FAST_KILLS=200."""
    (recipe,) = [block.text for block in blocks_of(DOCS / "follow.md") if block.heading == "Exactly once"]
    path, dice = tmp_path / "copy.db", random.Random(KILLS)
    ends = ", until_lsn=sys.argv[1] if len(sys.argv) > 1 else None)"
    program = (
        f"import sys\ndsn, path, stop = {streaming_dsn(database)!r}, {str(path)!r}, None\n"
        + recipe.replace('["shop"]', '["captured"]').replace(", stop=stop)", ends)
    )
    database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    create_slot(database.dsn, "copy")
    inside = 0
    try:
        with Writers(database):
            large = _LargeTransactions(database)
            large.start()
            try:
                for number in range(KILLS):
                    _kill(program, path, within=number % 2 == 0, seconds=dice.random() * 0.4)
                    inside += _is_inside(path)
            finally:
                large.stopped.set()
                large.join()
        subprocess.run([sys.executable, "-c", program, "now"], check=True, timeout=240)
        with closing(sqlite3.connect(path)) as copy:
            rows = copy.execute(
                "SELECT id, count(*) FROM changes WHERE relation = 'counted' GROUP BY id"
            ).fetchall()
            assert dict(rows) == dict(database.execute("SELECT id, n FROM counted"))
            noted = "SELECT count(*), count(DISTINCT id), coalesce(max(id), 0) FROM"
            assert copy.execute(f"{noted} changes WHERE relation = 'noted'").fetchall() == database.execute(
                f"{noted} noted"
            )
    finally:
        drop_when_free(database.dsn, "copy")
    assert inside > 0, "no kill was within a large transaction"


def _kill(program: str, path: Path, *, within: bool, seconds: float) -> None:
    """Runs the program, and kills it some time after it has stored something; `within` a transaction."""
    before = _stored(path)
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: process.poll() is not None or _stored(path) != before)
    time.sleep(seconds)
    if within:
        wait_until(lambda: _is_held_inside(process, path))
    process.kill()
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said


def _is_held_inside(process: subprocess.Popen[str], path: Path) -> bool:
    """Stops the program, which could leave the transaction before it is killed. It goes on if it is not within one."""
    process.send_signal(signal.SIGSTOP)
    if process.poll() is not None or _is_inside(path):
        return True
    process.send_signal(signal.SIGCONT)
    return False


def _stored(path: Path) -> str | None:
    """The stored position."""
    with closing(sqlite3.connect(path)) as copy:
        try:
            (stored,) = copy.execute("SELECT max(position) FROM reached").fetchone()
        except sqlite3.OperationalError:
            return None  # it has not made its tables yet
    return None if stored is None else str(stored)


def _is_inside(path: Path) -> bool:
    """Whether the stored position is within a transaction."""
    stored = _stored(path)
    return stored is not None and pgo.Position.parse(stored).slot_lsn is None
