"""Captures through SQL: the same segments as through a walsender, on every server, also where there is no walsender."""

from __future__ import annotations

import os
import random
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest

from pgoutput_fast._core.copy.slot_rows import CopiedRows
from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast.capture import (
    Capture,
    CaptureError,
    Limits,
    check,
    create_slot,
    drop_slot,
    find_slot,
    plugin_options,
)
from pgoutput_fast.capture.sql_source import SqlSource
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.segments import list_segments, read_segment
from support import pg
from support.capturing import (
    Running,
    Writers,
    committed,
    drop_when_free,
    expect_exactly_once,
    kill_often,
    now,
    slot,
    streaming_dsn,
    wait_until,
)

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]  # a fixture

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">II", 0, 0)
END = b"\xff\xff"


def _row(lsn: int, payload: bytes) -> bytes:
    return struct.pack(">HIQI", 2, 8, lsn, len(payload)) + payload


# ---- the COPY stream ---------------------------------------------------------------------------------------------


def _feed(chunks: list[bytes]) -> list[tuple[int, bytes]]:
    rows = CopiedRows()
    found: list[tuple[int, bytes]] = []
    for chunk in chunks:
        payloads, lsns = rows.feed(pa.py_buffer(chunk))
        payloads.validate(full=True)
        found += zip(lsns.to_pylist(), payloads.to_pylist(), strict=True)
    rows.finish()
    assert rows.rows == len(found)
    return found


def test_rows_from_chunks_cut_anywhere() -> None:
    rng = random.Random(7)
    rows = [(rng.randrange(1 << 63), rng.randbytes(rng.choice([0, 1, 7, 300]))) for _ in range(60)]
    extension = b"PGCOPY\n\xff\r\n\0" + struct.pack(">II", 0x8001, 5) + b"hello"
    for header in (HEADER, extension):
        stream = header + b"".join(_row(*row) for row in rows) + END
        assert _feed([stream]) == rows
        assert _feed([stream[at : at + 1] for at in range(len(stream))]) == rows
        for _ in range(30):
            cuts = sorted(rng.randrange(len(stream)) for _ in range(rng.randrange(1, 20)))
            pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
            assert _feed(pieces) == rows
    assert _feed([HEADER + END]) == []


@pytest.mark.parametrize(
    ("stream", "reason", "offset", "row"),
    [
        (b"\\x42", 58, 0, 0),
        (b"PGCOPY\n\xff\r\n\n" + bytes(8), 58, 0, 0),
        (HEADER[:11] + struct.pack(">II", 1 << 16, 0), 58, 11, 0),
        (HEADER[:11] + struct.pack(">Ii", 0, -1), 58, 15, 0),
        (HEADER + struct.pack(">H", 3), 59, 19, 0),
        (HEADER + struct.pack(">H", 0xFFFE), 59, 19, 0),
        (HEADER + _row(1, b"C") + struct.pack(">HI", 2, 4), 59, 40, 1),
        (HEADER + struct.pack(">HIQ", 2, 8, 1 << 63), 14, 25, 0),
        (HEADER + struct.pack(">HIQi", 2, 8, 1, -1), 59, 33, 0),
        (HEADER + struct.pack(">HIQi", 2, 8, 1, 1 << 30), 5, 33, 0),
        (HEADER + END + b"x", 61, 21, 0),
        (HEADER + _row(1, b"C") + END + HEADER, 61, 40, 1),
    ],
)
def test_what_is_no_such_copy_is_refused_where_it_is_wrong(
    stream: bytes, reason: int, offset: int, row: int
) -> None:
    for chunks in ([stream], [stream[at : at + 1] for at in range(len(stream))]):
        with pytest.raises(Malformed) as caught:
            _feed(chunks)
        assert (caught.value.reason, caught.value.offset) == (reason, offset)
        assert caught.value.frame == row
        rows = CopiedRows()
        with pytest.raises(Malformed):
            rows.feed(pa.py_buffer(stream))
        with pytest.raises(ValueError, match="malformed before this"):
            rows.feed(pa.py_buffer(END))


def test_a_copy_that_ends_too_early() -> None:
    stream = HEADER + _row(1, b"C") + END
    for size in range(len(stream)):
        rows = CopiedRows()
        rows.feed(pa.py_buffer(stream[:size]))
        with pytest.raises(Malformed) as caught:
            rows.finish()
        assert (caught.value.reason, caught.value.offset) == (60, size)


def _read_slowly(stream: bytes) -> tuple[list[tuple[int, bytes]], int | None]:
    """The rows, and why they end before the stream does."""
    rows: list[tuple[int, bytes]] = []
    signature, rest = HEADER[:11], stream[19:]
    if not signature.startswith(stream[:11]) or (stream[11:13].strip(b"\0") and len(stream) >= 19):
        return rows, 58
    if len(stream) < 19:
        return rows, 60
    (extension,) = struct.unpack(">i", stream[15:19])
    if extension < 0:
        return rows, 58
    if len(rest) < extension:
        return rows, 60
    rest = rest[extension:]
    while rest[:2] != END:
        count = int.from_bytes(rest[:2])
        if len(rest) >= 2 and count != 2:
            return rows, 59
        if len(rest) >= 6 and int.from_bytes(rest[2:6]) != 8:
            return rows, 59
        if len(rest) >= 14 and rest[6] > 127:
            return rows, 14
        if len(rest) < 18:
            return rows, 60
        size = int.from_bytes(rest[14:18], signed=True)
        if size < 0 or size > 0x3FFFFFFF:
            return rows, 59 if size < 0 else 5
        if len(rest) < 18 + size:
            return rows, 60
        rows.append((int.from_bytes(rest[6:14]), rest[18 : 18 + size]))
        rest = rest[18 + size :]
    return rows, 61 if len(rest) > 2 else None


def test_damaged_streams_end_where_a_slow_reader_ends() -> None:
    """Longer with PGOUTPUT_FAST_MUTATIONS=100000."""
    rng = random.Random(11)
    for _ in range(int(os.environ.get("PGOUTPUT_FAST_MUTATIONS", "3000"))):
        extension = rng.randbytes(rng.choice([0, 0, 9]))
        stream = bytearray(HEADER[:15] + struct.pack(">I", len(extension)) + extension)
        for _ in range(rng.randrange(5)):
            stream += _row(rng.randrange(1 << 63), rng.randbytes(rng.choice([0, 1, 40])))
        stream += END
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(stream))
            match rng.randrange(3):
                case 0:
                    stream[at] = rng.choice([0, 1, 2, 8, 127, 128, 255])
                case 1:
                    del stream[at : at + rng.randrange(30)]
                    stream += b"\0" * (not stream)
                case _:
                    stream[at:at] = rng.randbytes(rng.randrange(1, 9))
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(5)))
        rows, expected = _read_slowly(bytes(stream))
        reader, found, reason = CopiedRows(), [], None
        try:
            for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                payloads, lsns = reader.feed(pa.py_buffer(bytes(stream[a:b])))
                found += zip(lsns.to_pylist(), payloads.to_pylist(), strict=True)
            reader.finish()
        except Malformed as problem:
            reason = problem.reason
        assert reason == expected
        # Rows of the chunk that was wrong are not given.
        assert found == rows[: len(found)]
        assert reason is not None or len(found) == len(rows)


# ---- from servers ------------------------------------------------------------------------------------------------


def _through_sql(database: pg.Database, slot: str, directory: Path, **limits: float) -> Capture:
    return Capture(
        streaming_dsn(database),
        slot,
        ["captured"],
        directory,
        limits=Limits(**limits),
        through="sql",  # type: ignore[arg-type]
    )


def _held(database: pg.Database, slot: str) -> int:
    """How many messages the slot holds."""
    with SqlSource(database.dsn, slot, plugin_options(database.version * 10000, ["captured"])) as pull:
        return sum(len(each.payloads) for each in pull.peek(now(database), None))


def _change(database: pg.Database) -> None:
    """Transactions of several sizes, savepoints, rollbacks, messages, a prepared one."""
    database.execute(
        "INSERT INTO counted SELECT g, 1, repeat('z', 200) FROM generate_series(1, 1500) g",
        "UPDATE counted SET n = n + 1 WHERE id % 7 = 0",
        "BEGIN; INSERT INTO counted VALUES (9001, 1); SAVEPOINT s; INSERT INTO counted VALUES (9002, 1); "
        "ROLLBACK TO s; INSERT INTO counted VALUES (9003, 1); COMMIT",
        "BEGIN; INSERT INTO counted SELECT g, 1, repeat('z', 200) FROM generate_series(20000, 21500) g; ROLLBACK",
        "SELECT pg_logical_emit_message(false, 'p', 'outside')",
        "SELECT pg_logical_emit_message(true, 'p', 'inside')",
        "UPDATE counted SET n = n + 1 WHERE id < 40",
    )  # fmt: skip


def test_the_same_as_through_a_walsender(database: pg.Database, slot: str, tmp_path: Path) -> None:
    other = f"{slot}_w"
    create_slot(database.dsn, other)
    try:
        _change(database)
        lsn = now(database)
        Capture(streaming_dsn(database), other, ["captured"], tmp_path / "w").run(until_lsn=lsn)
        _through_sql(database, slot, tmp_path / "s", rows=400).run(until_lsn=lsn)
    finally:
        drop_when_free(database.dsn, other)
    expect_exactly_once(database, tmp_path / "s")
    assert len(list_segments(tmp_path / "s")) > 1
    order = [("_commit_lsn", "ascending"), ("_lsn", "ascending"), ("_change_type", "descending")]
    tables = [
        committed(tmp_path / each)
        .table("public.counted")
        .drop_columns(["_seq", "_txn", "_subxid"])
        .sort_by(order)
        for each in "ws"
    ]
    assert tables[0].num_rows > 1500
    assert tables[0].equals(tables[1])
    if database.version >= 14:
        said = [sorted(committed(tmp_path / each).messages["content"].to_pylist()) for each in "ws"]
        assert set(said[0]) == {b"inside", b"outside"}
        assert set(said[1]) == set(said[0])
    found = find_slot(database.dsn, slot)
    assert found is not None
    assert found.confirmed_flush_lsn is not None
    assert found.confirmed_flush_lsn >= lsn


def test_idle_slots_advance(database: pg.Database, slot: str, tmp_path: Path) -> None:
    capture = _through_sql(database, slot, tmp_path)
    for _ in range(2):
        database.execute("CREATE TABLE unpublished AS SELECT 'x' AS x", "DROP TABLE unpublished")
        lsn = now(database)
        capture.run(until_lsn=lsn)
        found = find_slot(database.dsn, slot)
        assert found is not None
        assert found.confirmed_flush_lsn is not None
        assert found.confirmed_flush_lsn >= lsn
    if database.version >= 15:
        assert list_segments(tmp_path) == []


def test_messages_outside_of_transactions_do_not_hold_it_up(
    database: pg.Database, slot: str, tmp_path: Path
) -> None:
    """They end a peek by their number, and none of them moves the position of what committed."""
    if database.version < 14:
        pytest.skip("messages are sent since 14")
    database.execute("SELECT pg_logical_emit_message(false, 'p', g::text) FROM generate_series(1, 300) g")
    database.execute("INSERT INTO counted VALUES (1, 1)")
    _through_sql(database, slot, tmp_path, rows=50).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    assert {int(each) for each in committed(tmp_path).messages["content"].to_pylist()} == set(range(1, 301))


def test_one_way_and_the_other_in_turn(database: pg.Database, slot: str, tmp_path: Path) -> None:
    for turn in range(4):
        database.execute(
            f"INSERT INTO counted SELECT g, 1, repeat('z', 200) FROM generate_series({turn * 2000}, {turn * 2000 + 999}) g",
            "UPDATE counted SET n = n + 1 WHERE id % 10 = 0",
        )
        through = "sql" if turn % 2 else "walsender"
        Capture(
            streaming_dsn(database),
            slot,
            ["captured"],
            tmp_path,
            limits=Limits(rows=300),
            through=through,  # type: ignore[arg-type]
        ).run(until_lsn=now(database))
        expect_exactly_once(database, tmp_path)


def test_an_acknowledgement_that_the_slot_never_got(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """As after a kill between the segment and the advance: what the segments have is left behind first."""
    database.execute("INSERT INTO counted SELECT g, 1 FROM generate_series(1, 50) g")
    lsn = now(database)
    advance = SqlSource.advance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlSource, "advance", lambda self, at: None if at else advance(self, at))
        _through_sql(database, slot, tmp_path).run(until_lsn=lsn)
    assert _held(database, slot) >= 52
    _through_sql(database, slot, tmp_path).run(until_lsn=lsn)
    assert _held(database, slot) == 0
    expect_exactly_once(database, tmp_path)


@pytest.mark.newest_server
def test_many_peeks_in_one_session(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """A process of an old server decodes ten times at most."""
    with Running(capture := _through_sql(database, slot, tmp_path, seconds=0.02)) as running:
        for k in range(15):
            database.execute(f"INSERT INTO counted VALUES ({k}, 1)")
            lsn = now(database)
            wait_until(lambda: running.failed or (capture.metrics.confirmed_lsn or 0) >= lsn)  # noqa: B023
        assert running.failed is None
        assert capture.metrics.sessions == 1
    assert len(list_segments(tmp_path)) >= 15
    expect_exactly_once(database, tmp_path)


def test_slots_that_go_while_it_runs(database: pg.Database, slot: str, tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _through_sql(database, slot, tmp_path, seconds=0.05).run()
        except BaseException as problem:
            failed.append(problem)

    database.execute("INSERT INTO counted VALUES (1, 1)")
    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.02)
    while time.monotonic() < deadline:  # while it is peeked at, it cannot be dropped
        try:
            drop_slot(database.dsn, slot)
            break
        except psycopg2.errors.ObjectInUse:
            time.sleep(0.01)
    thread.join(240)
    assert not thread.is_alive()
    (problem,) = failed
    # Between a look at the slot and the peek, the server itself says that it is not there.
    assert isinstance(problem, CaptureError | psycopg2.errors.UndefinedObject)


def test_prepared_transactions_across_peeks(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Prepared in one peek, ended in a later one, which is a session of its own."""
    if database.version < 15:
        pytest.skip("prepared transactions are sent since 15")
    drop_slot(database.dsn, slot)
    create_slot(database.dsn, slot, two_phase=True)
    capture = _through_sql(database, slot, tmp_path)
    rows = "SELECT g, 1, repeat('z', 200) FROM generate_series({}, {}) g"
    database.execute(
        f"BEGIN; INSERT INTO counted {rows.format(1, 900)}; PREPARE TRANSACTION '{slot} kept'",
        f"BEGIN; INSERT INTO counted {rows.format(1001, 1900)}; PREPARE TRANSACTION '{slot} undone'",
    )
    capture.run(until_lsn=now(database))
    database.execute("INSERT INTO counted VALUES (5000, 1)")
    capture.run(until_lsn=now(database))
    database.execute(f"COMMIT PREPARED '{slot} kept'", f"ROLLBACK PREPARED '{slot} undone'")
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    kinds = [kind for each in list_segments(tmp_path) for kind in read_segment(each.path)["kind"].to_pylist()]
    assert [kinds.count(ord(kind)) for kind in "PKrI"] == [2, 1, 1, 1801]


def test_two_pulls_from_one_slot(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Into two directories, so that no lock of files keeps them apart."""
    options = plugin_options(database.version * 10000, ["captured"])
    with (
        SqlSource(database.dsn, slot, options),
        pytest.raises(psycopg2.errors.ObjectInUse, match="another session reads slot"),
    ):
        _through_sql(database, slot, tmp_path).run(retry_seconds=0.5)
    _through_sql(database, slot, tmp_path).run(until_lsn=now(database))


def test_a_slot_that_somebody_else_advances(database: pg.Database, slot: str, tmp_path: Path) -> None:
    if database.version < 11:
        pytest.skip("10 advances a slot by reading, to a position that cannot be known before")
    with Running(_through_sql(database, slot, tmp_path, seconds=0.2)) as running:
        database.execute("INSERT INTO counted VALUES (1, 1)")
        wait_until(lambda: running.failed or list(tmp_path.glob("*.parquet")))

        def taken() -> bool:
            try:
                return bool(
                    database.execute(
                        "INSERT INTO counted VALUES (2, 1) ON CONFLICT (id) DO UPDATE SET n = counted.n + 1",
                        f"SELECT count(*) FROM pg_logical_slot_get_binary_changes('{slot}', NULL, NULL, "
                        "'proto_version', '1', 'publication_names', 'captured')",
                    )
                )
            except psycopg2.errors.ObjectInUse:
                return False

        wait_until(taken)
        running.join()
    assert isinstance(running.failed, CaptureError)
    # The latter if it met the other one at the slot, and began again.
    said = "somebody else (has advanced slot .* the changes in between are lost|read from the slot)"
    assert re.search(said, str(running.failed))


def test_a_huge_transaction_is_recorded_while_it_comes(
    database: pg.Database, slot: str, tmp_path: Path
) -> None:
    database.execute(
        "INSERT INTO counted SELECT g, 1, repeat('z', 400) FROM generate_series(1, 30000) g",
    )
    _through_sql(database, slot, tmp_path, rows=100, nbytes=1 << 20).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)
    assert len(list_segments(tmp_path)) > 2  # within the one transaction


@pytest.mark.newest_server
def test_stopped_in_the_middle(database: pg.Database, slot: str, tmp_path: Path) -> None:
    database.execute("INSERT INTO counted SELECT g, 1, repeat('z', 400) FROM generate_series(1, 60000) g")
    stop = threading.Event()
    capture = _through_sql(database, slot, tmp_path, nbytes=1 << 18)
    thread = threading.Thread(target=capture.run, kwargs={"stop": stop})
    thread.start()
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.001)
    stop.set()
    thread.join(240)
    assert not thread.is_alive()
    capture.run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


_PROCESS = """
import sys
from pgoutput_fast.capture import Capture, Limits
dsn, slot, directory = sys.argv[1:]
Capture(dsn, slot, ["captured"], directory, limits=Limits(seconds=0.05, rows=500), through="sql").run()
"""


@pytest.mark.slow
@pytest.mark.newest_server
def test_killed_at_random_moments(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """The full form takes PGOUTPUT_FAST_KILLS=50."""
    kills = int(os.environ.get("PGOUTPUT_FAST_KILLS", "2"))
    arguments = [sys.executable, "-c", _PROCESS, streaming_dsn(database), slot, str(tmp_path)]
    with Writers(database):
        kill_often(arguments, tmp_path, kills, random.Random(database.version))
    _through_sql(database, slot, tmp_path).run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


# ---- without walsenders --------------------------------------------------------------------------------------------


@pytest.fixture
def without_walsenders(server: Server) -> Iterator[pg.Database]:
    """A server of its own that allows no replication connection, with a user who may have one."""
    with Server(server.installation, {"max_wal_senders": 0}) as own:
        database = pg.Database(own)
        database.execute(
            "CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL, filler text)",
            "CREATE PUBLICATION captured FOR TABLE counted",
            "CREATE ROLE puller LOGIN REPLICATION",
        )
        yield database


@pytest.mark.newest_server
def test_where_no_replication_connection_is_allowed(without_walsenders: pg.Database, tmp_path: Path) -> None:
    database = without_walsenders
    dsn = database.dsn.replace("user=postgres", "user=puller")
    create_slot(dsn, "pulled")
    assert [each.subject for each in check(dsn, ["captured"]).findings if each.level == "error"] == [
        "max_wal_senders"
    ]
    assert check(dsn, ["captured"], "pulled", through="sql").ok
    database.execute("INSERT INTO counted SELECT g, 1 FROM generate_series(1, 100) g")
    with pytest.raises(psycopg2.OperationalError, match="max_wal_senders"):
        Capture(dsn, "pulled", ["captured"], tmp_path).run()
    Capture(dsn, "pulled", ["captured"], tmp_path, through="sql").run(until_lsn=now(database))
    expect_exactly_once(database, tmp_path)


def test_other_ways_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="through must be 'walsender' or 'sql', not 'jdbc'"):
        Capture("", "s", ["p"], tmp_path, through="jdbc")  # type: ignore[arg-type]
