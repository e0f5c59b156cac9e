"""Mirrors whose server crashes, and whose store is away, refuses, or does not answer: they go on, with each change once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import find_slot
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import Mirror, points
from support import counters, pg
from support.buckets import Bucket, opened_bucket
from support.capturing import drop_when_free, freed, wait_until
from support.counters import TABLE, Counting, expect_counted
from support.mirrors import Following, Place, expect_equal, opened, place

__all__ = ["place"]

# Ends the walsenders of this database.
_END = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'walsender' AND datname = current_database()"
)
SOAK = pytest.mark.skipif(int(os.environ.get("PGOUTPUT_FAST_KILLS", "3")) < 4, reason="make soak does this")


def _tries(caplog: pytest.LogCaptureFixture) -> int:
    """How often a mirror has tried again."""
    return sum("the mirror tries again in" in each.getMessage() for each in caplog.records)


def _grows(place: Place) -> Any:
    """A condition: the mirror has recorded a new point."""
    before = points(place.target)[-1:]
    return lambda: points(place.target)[-1:] != before


# ---- the server -----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Place]:
    """A server of its own, which a test may crash."""
    if not pg.installations():
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with Server(pg.installations()[max(pg.installations())]) as server, opened(server, tmp_path) as found:
        found.database.execute(
            *counters.SCHEMA,
            "CREATE TABLE later (id int PRIMARY KEY)",
            "INSERT INTO later SELECT generate_series(1, 100)",
            "ALTER PUBLICATION mirrored ADD TABLE later",
        )
        yield found


class _Crash:
    """The first call lets the server crash, and starts it again."""

    def __init__(self, place: Place) -> None:
        self._place, self.is_done = place, False

    def __call__(self, *_: object) -> None:
        if not self.is_done:
            self.is_done = True
            self._place.database.server.crash()
            self._place.database.server.start()


@pytest.mark.slow
def test_a_server_that_crashes(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Between two tables of the first load, and twice behind it."""
    crash = _Crash(own)
    with Counting(own.database) as counting, own.mirror(progress=crash) as mirror:
        with Following(mirror) as following:
            following.until(lambda: points(own.target))
            assert crash.is_done
            assert any("must be loaded: " in each.getMessage() for each in caplog.records)
            for _ in range(2):
                following.until(_grows(own))
                own.database.server.crash()
                time.sleep(0.3)
                own.database.server.start()
                before = counting.transactions
                wait_until(lambda: counting.transactions > before + 5)  # noqa: B023
            following.until(_grows(own))
        # A record that the crash cut off still says how long it was: no server reads past it before so much new WAL.
        own.database.execute(
            "CREATE TABLE filler AS SELECT g, repeat('z', 1900) FROM generate_series(1, 20) g"
        )
    own.run()
    expect_counted(own)
    expect_equal(own, "public.later")


@pytest.mark.slow
def test_a_capture_that_is_killed(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The mirror starts it again. A signal that a system sends to all processes of a service does not end it alone."""
    place.database.execute(*counters.SCHEMA)
    with place.mirror() as mirror:
        with Counting(place.database), Following(mirror) as following:
            following.until(lambda: points(place.target) and _captures())
            for n in (1, 2):
                following.until(_grows(place))
                (pid,) = _captures()
                os.kill(pid, signal.SIGTERM)
                following.until(_grows(place))
                assert _captures() == [pid]
                os.kill(pid, signal.SIGKILL)
                following.until(lambda: pid not in _captures() and _captures())  # noqa: B023
                following.until(_grows(place))
                assert _tries(caplog) >= n
        said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert any("its process was killed (SIGKILL)" in each for each in said)
        place.run_in(mirror)
    expect_counted(place)


@pytest.mark.slow
def test_a_capture_that_is_killed_and_may_not_come_back(place: Place) -> None:
    place.database.execute(*counters.SCHEMA)
    with place.mirror(retry_seconds=0) as mirror:
        mirror.run(until_lsn="now")
        with Following(mirror) as following:
            wait_until(lambda: _captures())
            os.kill(_captures()[0], signal.SIGKILL)
            wait_until(lambda: following.problem)
        assert "its process was killed (SIGKILL)" in str(following.problem)
        place.run_in(mirror)


def _captures() -> list[int]:
    """The captures that this process has started."""
    found = []
    for each in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread has ended
            for pid in each.read_text().split():
                with contextlib.suppress(OSError):
                    if b"pgoutput_fast.capture.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(int(pid))
    return found


@pytest.mark.slow
def test_a_load_that_the_server_interrupts(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A table is loaded again behind the first load. The server crashes while it is."""
    own.run()
    crash = _Crash(own)
    own.database.execute(
        "ALTER TABLE counted ADD COLUMN more float8 DEFAULT random()", "UPDATE counted SET n = n + 1"
    )
    with own.mirror(progress=crash) as mirror:
        mirror.run(until_lsn="now")
        own.expect_no_errors(mirror)
    assert crash.is_done
    expect_equal(own, TABLE)


@pytest.mark.slow
def test_a_server_that_stays_away(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    own.run()
    freed(own.database.dsn, own.slot)  # so that the walsender below is that of the mirror
    with own.mirror(retry_seconds=1.0) as mirror:
        with Following(mirror) as following:
            wait_until(lambda: own.database.execute("SELECT 1 FROM pg_stat_replication"))
            own.database.server.stop()
            wait_until(lambda: following.problem is not None)
            # The metrics say what the tables were.
            assert "public.counted" in [each.table for each in mirror.metrics.tables]
            assert mirror.metrics.points is not None
        assert "refused" in str(following.problem)
    assert _tries(caplog) > 0
    own.database.server.start()
    own.database.execute("UPDATE counted SET n = n + 1")
    own.run()
    expect_counted(own)


@pytest.mark.slow
def test_a_repair_that_the_server_interrupts(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The repair begins again by itself. Meanwhile, Prometheus can read how it goes."""
    own.run()
    drop_when_free(own.database.dsn, own.slot)
    own.database.execute("UPDATE counted SET n = n + 7", "DELETE FROM later WHERE id > 50")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    seen: list[str] = []

    def crash(*_: object) -> None:
        if not seen:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=240) as answer:
                seen.append(answer.read().decode())
            own.database.server.crash()
            own.database.server.start()

    with own.mirror(progress=crash, metrics_address=address) as mirror:
        done = {each.table: (each.updated, each.deleted) for each in mirror.repair()}
        own.run_in(mirror)
    assert _tries(caplog) > 0
    assert f'pgoutput_fast_mirror_running{{slot="{own.slot}"}} 1' in seen[0]
    assert done == {TABLE: (20, 0), "public.later": (0, 50)}
    expect_equal(own, TABLE, "public.later")


@pytest.mark.slow
def test_a_server_that_takes_no_capture_any_more(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Queries succeed all the time. The outage has its limit all the same, which does not begin anew with each try."""
    database, role = place.database, f"{place.database.name}_role"
    database.execute(
        *counters.SCHEMA, f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON counted TO {role}"
    )
    try:
        place.run()
        dsn = re.sub(r"user=\S+", f"user={role}", database.dsn)
        with (
            Mirror(dsn, place.slot, ["mirrored"], place.target, seconds=0.5, retry_seconds=2.0) as mirror,
            Following(mirror) as following,
        ):
            wait_until(
                lambda: database.execute(
                    f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{place.slot}' AND active"
                )
            )
            database.execute(f"ALTER ROLE {role} NOREPLICATION", _END)
            wait_until(lambda: following.problem is not None)
        assert "permission denied" in str(following.problem)
        assert _tries(caplog) > 0
        place.run()
        expect_counted(place)
    finally:
        place.drop()
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# ---- the store ------------------------------------------------------------------------------------------------------


@contextmanager
def _in_a_bucket(place: Place) -> Iterator[Bucket]:
    place.database.execute(*counters.SCHEMA)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        yield bucket


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, pytest.param(60.0, marks=SOAK)])
def test_a_store_that_is_away(place: Place, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    with _in_a_bucket(place) as bucket, place.mirror() as mirror:
        with Counting(place.database), Following(mirror) as following:
            following.until(lambda: points(place.target))
            bucket.stop()
            began = time.monotonic()
            following.until(lambda: _tries(caplog) > 0 and time.monotonic() >= began + seconds)
            bucket.start()
            following.until(_grows(place))
        place.run_in(mirror)
        expect_counted(place)


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param("history/", marks=pytest.mark.exhaustive),
        *(pytest.param(each, marks=SOAK) for each in ("_delta_log/", "current/", "_mirror/")),
    ],
)
def test_a_store_that_refuses(place: Place, refused: str, caplog: pytest.LogCaptureFixture) -> None:
    with _in_a_bucket(place) as bucket, place.mirror() as mirror:
        mirror.run(until_lsn="now")
        with Counting(place.database), Following(mirror) as following:
            following.until(_grows(place))
            bucket.refuse(refused)
            following.until(lambda: _tries(caplog) > 1)
            place.expect_no_errors(mirror)  # no table is stopped for that
            bucket.refuse()
            following.until(_grows(place))
        place.run_in(mirror)
        expect_counted(place)


@SOAK
def test_a_store_that_refuses_for_too_long(place: Place) -> None:
    with _in_a_bucket(place) as bucket, place.mirror(retry_seconds=1.0) as mirror:
        bucket.refuse("current/")
        with pytest.raises(OSError, match="ACCESS_DENIED") as first:
            mirror.run(until_lsn="now")
        assert "cannot be reached, or refuses" in "".join(first.value.__notes__)
        bucket.refuse()
        mirror.run(until_lsn="now")
        place.database.execute("UPDATE counted SET n = n + 1")
        bucket.refuse("history/")
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            mirror.run(until_lsn="now")
        bucket.refuse()
        place.run_in(mirror)
        expect_counted(place)


@pytest.mark.slow
def test_commits_whose_answers_are_lost(place: Place) -> None:
    """The store has done what it was asked, but nobody hears of it: of the first commits, and of later ones."""
    files = ["history/public.counted/_delta_log", "current/public.counted/_delta_log"]
    with _in_a_bucket(place) as bucket, place.mirror() as mirror:
        for lost in (
            files[::-1],
            files,
            [*files, "_mirror/progress", "_mirror/points"],
            ["_segments/", *files],
        ):
            bucket.lose_answers(*lost)
            mirror.run(until_lsn="now")
            assert bucket.to_lose == 0
            expect_counted(place)
            place.database.execute(
                "UPDATE counted SET n = n + 1", "UPDATE counted SET n = n + 1 WHERE id < 5"
            )
        place.database.execute("ALTER TABLE counted ADD COLUMN more int", "UPDATE counted SET n = n + 1")
        bucket.lose_answers(*files, *files)  # the commits of a new column, too
        place.run_in(mirror)
        expect_counted(place)


# ---- a load that waits ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_told_to_stop_while_a_load_waits(place: Place) -> None:
    """A snapshot waits until the transactions have ended that are open. Nobody has to wait with it."""
    database = place.database
    database.execute(*counters.SCHEMA, "CREATE TABLE other (id int)")
    with database.session() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO other VALUES (1)")
        _stopped_while_it_waits(place)
        assert find_slot(database.dsn, place.slot) is None
    place.run()
    database.execute(
        "ALTER TABLE counted ADD COLUMN more float8 DEFAULT random()", "UPDATE counted SET n = n + 1"
    )
    with database.session() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO other VALUES (1)")
        _stopped_while_it_waits(place)
    place.run()
    expect_equal(place, TABLE)


def _stopped_while_it_waits(place: Place) -> None:
    """Starts a mirror, and stops it when the server waits with its snapshot."""
    process = place.start()
    try:
        wait_until(lambda: process.poll() is not None or _waiting(place))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, said
    wait_until(lambda: not _waiting(place))


def _waiting(place: Place) -> bool:
    """Whether the server makes a slot, and waits for a transaction."""
    return bool(
        place.database.execute(
            "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
    )


def test_the_dsn_on_the_standard_input(place: Place) -> None:
    place.database.execute(*counters.SCHEMA)
    environment = {name: text for name, text in place.environment.items() if name != "PGOUTPUT_FAST_DSN"}
    run = subprocess.run(
        place.arguments("--dsn", "-", "--until", "now"),
        input=f"{place.database.dsn}\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert place.database.dsn not in run.stderr
    expect_counted(place)
