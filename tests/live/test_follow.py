"""`follow` on real servers: what comes, what is acknowledged, and what comes again after any kind of end."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2.errors
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import CaptureError, create_slot, drop_slot, find_slot
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.live import reader
from support import pg
from support.capturing import (
    Writers,
    freed,
    now,
    stoppable,
    streaming_dsn,
    wait_until,
)
from support.capturing import slot as slot

pytestmark = pytest.mark.few_servers

Following = Iterator[tuple[pgo.Decoded, Callable[[], None]]]


def _ids(decoded: pgo.Decoded) -> list[int]:
    return [
        row["id"]
        for each in decoded.changes
        for row in each.batch.to_pylist()
        if row["_change_type"] in ("insert", "update_postimage")
    ]


def _counted(decoded: pgo.Decoded) -> list[int]:
    """The ids of the changes of `counted` alone."""
    return [
        row["id"]
        for each in decoded.changes
        if each.relation.name == "counted"
        for row in each.batch.select(["_change_type", "id"]).to_pylist()
        if row["_change_type"] in ("insert", "update_postimage")
    ]


def _confirmed(database: pg.Database, slot: str) -> int:
    found = find_slot(database.dsn, slot)
    assert found is not None
    return found.confirmed_flush_lsn or 0


def _insert(database: pg.Database, first: int, last: int) -> None:
    database.execute(f"INSERT INTO counted SELECT g, 1 FROM generate_series({first}, {last}) g")


def test_what_is_not_acknowledged_comes_again(database: pg.Database, slot: str) -> None:
    _insert(database, 1, 3)
    given = list(pgo.follow(database.dsn, slot, ["captured"], until_lsn="now"))
    assert [id for decoded, _ in given for id in _ids(decoded)] == [1, 2, 3]
    begin = _confirmed(database, slot)
    with pytest.raises(ValueError, match="has ended, so nothing can be acknowledged"):
        given[0][1]()
    seen = []
    for decoded, acknowledge in pgo.follow(database.dsn, slot, ["captured"], until_lsn="now"):
        seen += _ids(decoded)
        assert decoded.changes[0].batch.column("_commit_lsn").null_count == 0
        acknowledge()
        acknowledge()  # a second call does nothing
    assert seen == [1, 2, 3]
    assert (freed(database.dsn, slot).confirmed_flush_lsn or 0) > begin
    _insert(database, 4, 4)
    database.execute("TRUNCATE noted", "INSERT INTO noted VALUES (1, 'a')")
    (decoded, acknowledge), *rest = _one_by_one(pgo.follow(database.dsn, slot, ["captured"], until_lsn="now"))
    assert _ids(decoded)[0] == 4
    assert sum(each.truncates.num_rows for each in (decoded, *(each for each, _ in rest))) == (
        1 if database.version >= 11 else 0
    )


def _one_by_one(following: Following) -> list[tuple[pgo.Decoded, Callable[[], None]]]:
    given = []
    for decoded, acknowledge in following:
        acknowledge()
        given.append((decoded, acknowledge))
    return given


def test_a_break_keeps_what_was_acknowledged(database: pg.Database, slot: str) -> None:
    _insert(database, 1, 1)
    for decoded, acknowledge in pgo.follow(database.dsn, slot, ["captured"]):
        assert _ids(decoded) == [1]
        acknowledge()
        break
    _insert(database, 2, 2)
    stop, seen = threading.Event(), []
    for decoded, _ in pgo.follow(database.dsn, slot, ["captured"], stop=stop):
        seen += _ids(decoded)
        stop.set()
    assert seen == [2]
    freed(database.dsn, slot)


@pytest.mark.newest_server
def test_the_garbage_collector_ends_a_forgotten_loop(
    database: pg.Database, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run in the thread that reads. pytest makes an error of what is raised there."""
    collected = threading.Event()
    confirm = reader.confirm

    def collect_and_confirm(*arguments: Any) -> None:
        if forgotten.is_set():
            gc.collect()
            collected.set()
        confirm(*arguments)

    forgotten = threading.Event()
    monkeypatch.setattr(reader, "confirm", collect_and_confirm)
    _insert(database, 1, 1)
    gc.disable()
    try:
        following: list[Any] = [pgo.follow(database.dsn, slot, ["captured"])]
        following.append(following)
        assert _ids(next(following[0])[0]) == [1]
        del following
        forgotten.set()
        assert collected.wait(240)
    finally:
        gc.enable()
    freed(database.dsn, slot)


def test_an_idle_slot_goes_on_only_if_all_is_acknowledged(database: pg.Database, slot: str) -> None:
    _insert(database, 1, 1)
    released, told, stop = threading.Event(), threading.Event(), threading.Event()
    waiting: list[int] = []
    commits: list[int] = []

    def run() -> None:
        for decoded, acknowledge in pgo.follow(database.dsn, slot, ["captured"], stop=stop):
            waiting.extend(_ids(decoded))
            commits.append(decoded.changes[0].batch["_commit_lsn"][0].as_py())
            told.set()
            released.wait(120)
            acknowledge()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert told.wait(120)
        database.execute("CREATE TABLE unpublished AS SELECT 'x' AS x", "DROP TABLE unpublished")
        other = now(database)
        # The connection works while the changes wait; nothing of them is confirmed.
        wait_until(lambda: database.execute("SELECT 1 FROM pg_stat_replication"))
        # What was told before they came may be confirmed late.
        assert _confirmed(database, slot) <= commits[0] < other
        released.set()
        wait_until(lambda: _confirmed(database, slot) >= other)
    finally:
        released.set()
        stop.set()
        thread.join(120)
    assert waiting == [1]


@pytest.mark.newest_server
def test_lost_connections_repeat_nothing(database: pg.Database, slot: str) -> None:
    """Sessions write all the time; the walsender is ended again and again. Each committed change comes once."""
    seen, last = Counter[int](), 2_000_000

    def cut() -> None:
        with Writers(database):
            for _ in range(4):
                before = sum(seen.values())
                wait_until(lambda before=before: sum(seen.values()) > before + 50)
                _end_walsender(database, slot)
        _insert(database, last, last)

    cutting = threading.Thread(target=cut)
    cutting.start()
    for decoded, acknowledge in pgo.follow(streaming_dsn(database), slot, ["captured"]):
        seen.update(_counted(decoded))
        acknowledge()
        if last in seen:
            break
    cutting.join(240)
    assert seen == dict(database.execute("SELECT id, n FROM counted"))
    assert not list(pgo.follow(database.dsn, slot, ["captured"], until_lsn="now"))


@pytest.fixture
def own(servers: pg.Servers) -> Iterator[tuple[Server, pg.Database, str]]:
    """A server of the newest version that the test may stop, with a slot over two tables."""
    with stoppable(servers, "own") as database:
        yield database.server, database, "own"


def test_a_prepared_transaction_is_not_confirmed_away(own: tuple[Server, pg.Database, str]) -> None:
    """It is given when it commits. So the slot stays before it, although later changes are acknowledged."""
    _, database, _ = own
    create_slot(database.dsn, "two", two_phase=True)
    database.execute("BEGIN; INSERT INTO counted VALUES (1, 1); PREPARE TRANSACTION 'later'")
    _insert(database, 2, 2)

    def follow() -> list[list[int]]:
        return [
            _ids(decoded)
            for decoded, _ in _one_by_one(pgo.follow(database.dsn, "two", ["captured"], until_lsn="now"))
        ]

    assert follow() == [[2]]
    assert follow() == [[2]]  # it comes again: the slot could not go on behind it
    database.execute("COMMIT PREPARED 'later'")
    assert sorted(id for ids in follow() for id in ids) == [1, 2]
    assert follow() == []


def test_a_large_transaction_is_acknowledged_by_its_last_piece(
    own: tuple[Server, pg.Database, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, database, slot = own
    monkeypatch.setattr("pgoutput_fast.transactions.view._PIECE_ROWS", 1000)
    # Otherwise what a slow server sends late may be one piece.
    monkeypatch.setattr("pgoutput_fast.transactions.reorder_buffer._SMALL_ROWS", 500)
    monkeypatch.setattr("pgoutput_fast.live.reader.RECEIVED_BYTES", 1 << 16)
    _insert(database, 1, 5000)
    for decoded, acknowledge in pgo.follow(streaming_dsn(database), slot, ["captured"], until_lsn="now"):
        acknowledge()
        if _ids(decoded):
            break  # as if the process ended between two pieces
    assert 0 < len(_ids(decoded)) < 5000
    # The server may have told a position before that of the commit, to which an idle slot goes on.
    commit = decoded.changes[0].batch["_commit_lsn"][0].as_py()
    assert (freed(database.dsn, slot).confirmed_flush_lsn or 0) <= commit
    given = _one_by_one(pgo.follow(streaming_dsn(database), slot, ["captured"], until_lsn="now"))
    assert len(given) > 1
    assert [id for decoded, _ in given for id in _ids(decoded)] == list(range(1, 5001))
    assert (freed(database.dsn, slot).confirmed_flush_lsn or 0) > commit


def test_a_server_that_restarts(
    own: tuple[Server, pg.Database, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, database, slot = own
    _insert(database, 1, 2)
    seen: list[int] = []
    for decoded, acknowledge in pgo.follow(database.dsn, slot, ["captured"]):
        seen += _ids(decoded)
        if seen == [1, 2]:
            # These are not acknowledged yet. The server has them again, and this connection does not ask for them.
            server.stop("immediate")
            server.start()
            _insert(database, 3, 3)
        elif 3 in seen:
            acknowledge()
            break
    assert seen == [1, 2, 3]
    assert any("tries again" in text or "connects again" in text for text in caplog.messages)


def test_a_slot_that_somebody_dropped_or_read(own: tuple[Server, pg.Database, str]) -> None:
    _, database, slot = own
    _insert(database, 1, 1)
    following = pgo.follow(database.dsn, slot, ["captured"])
    next(following)
    _end_walsender(database, slot)
    wait_until(lambda: _dropped(database, slot))
    create_slot(database.dsn, slot)
    _insert(database, 2, 2)
    with pytest.raises(CaptureError, match="somebody else read from slot own, or dropped it"):
        next(following)
    following = pgo.follow(database.dsn, slot, ["captured"])
    next(following)
    _end_walsender(database, slot)
    wait_until(lambda: _dropped(database, slot))
    with pytest.raises(CaptureError, match=r"slot own is gone: somebody dropped it.*load the tables again"):
        next(following)


def _end_walsender(database: pg.Database, slot: str) -> None:
    database.execute(
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )


def _dropped(database: pg.Database, slot: str) -> bool:
    with contextlib.suppress(psycopg2.errors.ObjectInUse):
        drop_slot(database.dsn, slot)
        return True
    _end_walsender(database, slot)
    return False


def test_a_publication_that_is_dropped(own: tuple[Server, pg.Database, str]) -> None:
    _, database, slot = own
    _insert(database, 1, 1)
    following = pgo.follow(database.dsn, slot, ["captured"])
    _, acknowledge = next(following)
    database.execute("DROP PUBLICATION captured")
    acknowledge()
    with pytest.raises(CaptureError, match="captured"):
        next(following)


def test_what_arguments_may_not_be(database: pg.Database, slot: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="publications must be a list"):
        pgo.follow(database.dsn, slot, "captured")
    with pytest.raises(ValueError, match="at least one publication"):
        pgo.follow(database.dsn, slot, [])
    with pytest.raises(ValueError, match="a slot's name must have"):
        pgo.follow(database.dsn, "No Slot", ["captured"])
    with pytest.raises(TypeError, match="options must be an Options, not dict"):
        pgo.follow(database.dsn, slot, ["captured"], {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="or give 'now'"):
        pgo.follow(database.dsn, slot, ["captured"], until_lsn="soon")
    with pytest.raises(ValueError, match="receive_timeout must be positive"):
        pgo.follow(database.dsn, slot, ["captured"], receive_timeout=0)
    with pytest.raises(CaptureError, match="publication capturd: it does not exist"):
        next(iter(pgo.follow(database.dsn, slot, ["capturd"])))
    assert find_slot(database.dsn, "not_made") is None
    with pytest.raises(CaptureError, match="publication capturd: it does not exist"):
        next(iter(pgo.follow(database.dsn, "not_made", ["capturd"])))
    assert find_slot(database.dsn, "not_made") is None


def test_a_slot_of_another_database_and_one_in_use(database: pg.Database, slot: str) -> None:
    _insert(database, 1, 1)
    following = pgo.follow(database.dsn, slot, ["captured"])
    next(following)
    with pytest.raises(psycopg2.errors.ObjectInUse):
        next(pgo.follow(database.dsn, slot, ["captured"], retry_seconds=0.5))
    following.close()  # type: ignore[attr-defined]
    name = f"{slot}_elsewhere"
    create_slot(database.server.dsn, name)
    try:
        with pytest.raises(CaptureError, match=f"slot {name} has plugin pgoutput and decodes database"):
            next(pgo.follow(database.dsn, name, ["captured"]))
    finally:
        drop_slot(database.dsn, name)


def test_a_slot_that_does_not_exist_is_created(database: pg.Database, slot: str) -> None:
    name = f"{slot}_new"
    _insert(database, 1, 1)

    def begins() -> bool:
        """A slot is there before the position from which it sends changes."""
        found = find_slot(database.dsn, name)
        return found is not None and found.confirmed_flush_lsn is not None

    try:
        following = pgo.follow(database.dsn, name, ["captured"])
        writing = threading.Thread(target=lambda: (wait_until(begins), _insert(database, 2, 2)))
        writing.start()
        decoded, _ = next(following)
        writing.join(120)
        assert _ids(decoded) == [2]
        following.close()  # type: ignore[attr-defined]
    finally:
        wait_until(lambda: _dropped(database, name))


def test_as_sent_gives_what_is_not_committed(own: tuple[Server, pg.Database, str]) -> None:
    _, database, slot = own
    with database.session() as writer:
        writer.autocommit = False
        with writer.cursor() as cursor:
            cursor.execute(
                "INSERT INTO counted SELECT g, 1, repeat('x', 100) FROM generate_series(1, 5000) g"
            )
            _insert(database, 9001, 9001)
            committed = pgo.follow(streaming_dsn(database), slot, ["captured"], until_lsn="now")
            assert [id for decoded, _ in committed for id in _ids(decoded)] == [9001]
            sent = pgo.follow(streaming_dsn(database), slot, ["captured"], pgo.Options(), until_lsn="now")
            assert {id for decoded, _ in sent for id in _ids(decoded)} > {1, 2, 9001}
        writer.rollback()
