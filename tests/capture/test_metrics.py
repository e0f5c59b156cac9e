"""Metrics of captures that really run: the numbers agree with the segments and with what the server says."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from pgoutput_fast.capture import Capture, Limits, Metrics, find_slot, metrics
from pgoutput_fast.capture.metrics import Meter, reporting
from pgoutput_fast.segments import list_segments
from support import pg
from support.capturing import Running, now, slot, streaming_dsn, wait_until

pytestmark = pytest.mark.few_servers

__all__ = ["slot"]  # a fixture


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of a busy machine may need longer for its answer, and threads for their end."""
    monkeypatch.setattr(metrics, "_ASK_SECONDS", 240)
    monkeypatch.setattr(metrics, "_END_SECONDS", 240)


@contextmanager
def _running(capture: Capture) -> Iterator[None]:
    with Running(capture) as running:
        yield
    assert running.failed is None


def _until(capture: Capture, what: Callable[[Metrics], bool]) -> Metrics:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        seen = capture.metrics
        if what(seen):
            return seen
        time.sleep(0.05)
    raise AssertionError(f"never came true; last: {seen}")


@pytest.mark.newest_server
@pytest.mark.parametrize("through", ["walsender", "sql"])
def test_they_agree_with_segments_and_server(
    database: pg.Database, slot: str, tmp_path: Path, through: Any
) -> None:
    capture = Capture(
        streaming_dsn(database), slot, ["captured"], tmp_path, limits=Limits(seconds=0.1), through=through
    )
    before, began = capture.metrics, time.monotonic()
    assert (before.running, before.sessions, before.messages, before.segments) == (False, 0, 0, 0)
    assert before.server_lsn is not None
    with _running(capture):
        _until(capture, lambda seen: seen.running)
        database.execute("INSERT INTO counted SELECT g, 1, 'x' FROM generate_series(1, 3000) g")
        lsn = now(database)
        seen = _until(capture, lambda seen: (seen.confirmed_lsn or 0) >= lsn)
        assert seen.durable_lsn > 0
        assert seen.messages > 3000
        assert seen.payload_bytes > 3000 * 10
        assert seen.waiting_messages == 0
        assert seen.segments == len(list_segments(tmp_path)) > 0
        assert 0 < seen.messages_per_second < seen.bytes_per_second
        assert seen.open_transactions == 0
        assert seen.lag_bytes is not None
        assert seen.lag_bytes < 1 << 20
        assert seen.lag_seconds is not None
        assert 0 <= seen.lag_seconds <= time.monotonic() - began + 1
        found = find_slot(database.dsn, slot)
        assert found is not None
        assert seen.confirmed_lsn is not None
        assert found.confirmed_flush_lsn is not None
        assert found.confirmed_flush_lsn >= seen.confirmed_lsn
    after = capture.metrics
    assert (after.running, after.sessions) == (False, 1)
    # Nobody captures: the server goes on without us.
    database.execute("INSERT INTO counted SELECT g, 1, repeat('x', 500) FROM generate_series(4000, 6000) g")
    behind = capture.metrics
    assert after.lag_bytes is not None
    assert behind.lag_bytes is not None
    assert behind.lag_bytes > after.lag_bytes + 500_000
    time.sleep(0.3)
    later = capture.metrics
    assert later.lag_seconds is not None
    assert behind.lag_seconds is not None
    assert later.lag_seconds - behind.lag_seconds + 0.05 >= 0.3
    assert (later.messages, later.segments) == (after.messages, after.segments)


def test_open_transactions(database: pg.Database, slot: str, tmp_path: Path) -> None:
    if database.version < 14:
        pytest.skip("transactions are streamed since 14")
    capture = Capture(streaming_dsn(database), slot, ["captured"], tmp_path, limits=Limits(seconds=0.1))
    with _running(capture), database.session() as connection:
        connection.autocommit = False
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO counted SELECT g, 1, repeat('x', 500) FROM generate_series(1, 3000) g"
            )
        database.execute("SELECT pg_switch_wal()")
        _until(capture, lambda seen: seen.open_transactions == 1)
        connection.commit()
        _until(capture, lambda seen: seen.open_transactions == 0)


def test_where_they_are_told(
    database: pg.Database, slot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = f"http://127.0.0.1:{port}"
    file = tmp_path / "capture.prom"
    capture = Capture(
        database.dsn,
        slot,
        ["captured"],
        tmp_path / "segments",
        limits=Limits(seconds=0.1),
        log_seconds=0.2,
        metrics_file=file,
        metrics_address=f"127.0.0.1:{port}",
    )

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if "messages/s" in each.getMessage()]

    with caplog.at_level(logging.INFO, "pgoutput_fast.capture"), _running(capture):
        database.execute("INSERT INTO counted SELECT g, 1, 'x' FROM generate_series(1, 100) g")
        lsn = now(database)
        before = _until(capture, lambda seen: (seen.confirmed_lsn or 0) >= lsn)
        with urllib.request.urlopen(f"{page}/metrics") as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        after = capture.metrics
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{page}/else")
        _until(capture, lambda _: len(lines()) >= 2)
    values = dict(re.findall(rf'^pgoutput_fast_capture_(\w+){{slot="{slot}"}} (\S+)$', text, re.MULTILINE))
    assert float(values["messages_total"]) >= 100
    assert float(values["running"]) == 1
    assert before.durable_lsn <= int(values["durable_lsn"]) <= after.durable_lsn
    assert {"lag_bytes", "lag_seconds", "open_transactions", "segments_total", "server_lsn"} <= set(values)
    assert len(re.findall("^# TYPE ", text, re.MULTILINE)) == len(values)
    assert re.match(
        rf"slot {slot}: [\d,]+ bytes and (\d+\.\d|unknown) s behind, [\d,]+ messages/s", lines()[-1]
    )
    # At the end, too; and nobody listens any more.
    assert 'running{slot="' + slot + '"} 0' in file.read_text()
    assert [each.name for each in tmp_path.glob(".capture.prom*")] == []
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page)


def test_a_server_that_is_away_and_addresses_that_are_none(tmp_path: Path) -> None:
    dsn = "host=127.0.0.1 port=9 dbname=x user=x"
    seen = Capture(dsn, "gone", ["p"], tmp_path).metrics
    assert (seen.server_lsn, seen.lag_bytes, seen.lag_seconds) == (None, None, None)
    assert "unknown bytes and unknown s behind" in str(seen)
    assert "lag_bytes" not in seen.to_prometheus()
    with pytest.raises(ValueError, match="the address of metrics must be host:port, not 'here'"):
        Capture(dsn, "gone", ["p"], tmp_path, metrics_address="here").run()
    with pytest.raises(ValueError, match="the address of metrics must be host:port, not 'localhost:65536'"):
        Capture(dsn, "gone", ["p"], tmp_path, metrics_address="localhost:65536").run()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="in use") as caught:
            Capture(dsn, "gone", ["p"], tmp_path, metrics_address=address).run()
    assert (
        f"address of metrics is {address}: give one of this machine that is free" in caught.value.__notes__[0]
    )
    with pytest.raises(psycopg2.OperationalError):
        Capture(dsn, "gone", ["p"], tmp_path, metrics_file=tmp_path / "no" / "where").run()


@contextmanager
def _page(meter: Meter) -> Iterator[tuple[str, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with reporting(meter, log_seconds=None, file=None, address=f"127.0.0.1:{port}"):
        yield "127.0.0.1", port


def _scraped(place: tuple[str, int]) -> str:
    with urllib.request.urlopen(f"http://{place[0]}:{place[1]}/metrics", timeout=240) as answer:
        return str(answer.read().decode())


def test_clients_that_say_nothing_do_not_hold_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    # None of them leaves by itself.
    monkeypatch.setattr(metrics._Page, "timeout", 600)
    meter = Meter("host=127.0.0.1 port=9 dbname=x user=x", "idle")
    with _page(meter) as place:
        before = threading.active_count()
        idle = [socket.create_connection(place) for _ in range(300)]
        try:
            idle[-1].sendall(b"GET /metrics HT")
            assert 'running{slot="idle"} 0' in _scraped(place)
            # A thread that has left its place may need a moment to end.
            wait_until(lambda: threading.active_count() - before <= 17)
            # The first ones gave up their places.
            idle[0].settimeout(240)
            assert idle[0].recv(1) == b""
        finally:
            for each in idle:
                each.close()
        assert 'running{slot="idle"} 0' in _scraped(place)


def test_a_client_that_says_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics._Page.timeout <= 10
    monkeypatch.setattr(metrics._Page, "timeout", 0.3)
    meter = Meter("host=127.0.0.1 port=9 dbname=x user=x", "idle")
    with _page(meter) as place, socket.create_connection(place) as idle:
        idle.settimeout(240)
        assert idle.recv(1) == b""


def test_pages_share_a_look_at_the_server(database: pg.Database, slot: str) -> None:
    meter = Meter(database.dsn, slot)
    looks = []
    ask = meter._ask
    meter._ask = lambda: looks.append(1) or ask()  # type: ignore[method-assign,func-returns-value]
    with _page(meter) as place:
        started = time.monotonic()
        threads = [threading.Thread(target=_scraped, args=(place,)) for _ in range(10)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for _ in range(10):
            assert "server_lsn" in _scraped(place)
        passed = time.monotonic() - started
        assert len(looks) <= passed + 1
        # They go on, and are of now again after a second.
        time.sleep(1.1)
        _scraped(place)
        assert len(looks) >= 2
    # Whoever asks the capture itself is told what is now.
    at_least = len(looks) + 2
    meter.read()
    meter.read()
    assert len(looks) == at_least


def test_no_thread_lives_on() -> None:
    """A thread that uses Arrow while the interpreter ends would abort the process."""
    asked = threading.Semaphore(0)
    answering: list[int] = []

    class Slow:
        """Takes a while for each answer."""

        def read(self, within_seconds: float = 0.0) -> Any:
            answering.append(1)
            asked.release()
            time.sleep(0.3)
            answering.pop()
            return self

        def to_prometheus(self) -> str:
            return ""

    before = set(threading.enumerate())
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{1}".format(*free.getsockname())
    with reporting(Slow(), log_seconds=0.01, file=None, address=address):
        host, _, port = address.rpartition(":")
        client = socket.create_connection((host, int(port)))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        for _ in range(2):
            assert asked.acquire(timeout=60)
    client.close()
    assert not answering
    # A thread of the page that has done its work may need a moment to end.
    wait_until(lambda: set(threading.enumerate()) <= before)
