"""Metrics of a capture: its own counts and the server's view of the slot; as an object, log line, or for Prometheus."""

from __future__ import annotations

import contextlib
import http.server
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import psycopg2

from pgoutput_fast.capture.recorder import RecorderProgress
from pgoutput_fast.postgres.session import FLUSHED_LSN, session
from pgoutput_fast.postgres.slots import read_slot
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.storage.stores import hidden_name

__all__ = ["Meter", "Metrics", "MetricsReport", "Reporter", "reporting"]

_log = logging.getLogger("pgoutput_fast.capture")

# The period over which rates are averaged, approximately.
_RATE_SECONDS = 10.0
# The number of earlier server positions, with their times, that are kept.
_MOST_LOOKS = 1000
# Timeout of a query to the server for a report.
_ASK_SECONDS = 5
# Requests for the page within this time share one query to the server.
_SHARED_SECONDS = 1.0
# The maximum number of clients of the page, a thread for each, and how long a client may be silent.
_MOST_CLIENTS, _CLIENT_SECONDS = 16, 5.0
# How often the file is written.
_FILE_SECONDS = 10.0
_LAST_PORT = (1 << 16) - 1
# At the end, how long to wait for threads that still query a server or a store.
_END_SECONDS = 2.0


@dataclass(frozen=True)
class Metrics:
    """The state of a capture at one moment. A value that the server could not give is None.

    Attributes:
        slot: the slot's name.
        running: whether the capture is connected and captures.
        sessions: connections since the `Capture` object was created.
        messages, payload_bytes: received since then. Messages sent again after a lost connection count again.
        messages_per_second, bytes_per_second: received, average over about ten seconds, or since the previous reading
            of the metrics if that is longer ago.
        segments: written since then.
        waiting_messages: received but not yet durable.
        durable_lsn: everything committed up to this LSN is in segments that survive a crash.
        confirmed_lsn: the LSN confirmed to the server. Transactions that commit later are not confirmed.
        server_lsn: the end of the server's WAL.
        lag_bytes: bytes of WAL from the confirmed LSN to the server's end.
        lag_seconds: everything committed longer ago than this is durable. An upper bound.
        kept_bytes: bytes of WAL that the server keeps for the slot.
        open_transactions: transactions that have begun but not ended, at the end of the segments.
    """

    slot: str
    running: bool
    sessions: int
    messages: int
    payload_bytes: int
    messages_per_second: float
    bytes_per_second: float
    segments: int
    waiting_messages: int
    durable_lsn: int
    confirmed_lsn: int | None
    server_lsn: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    kept_bytes: int | None
    open_transactions: int

    def __str__(self) -> str:
        return (
            f"slot {self.slot}: {_format(self.lag_bytes, ' bytes', ',')} "
            f"and {_format(self.lag_seconds, ' s', '.1f')} behind, "
            f"{self.messages_per_second:,.0f} messages/s, {self.bytes_per_second:,.0f} bytes/s, "
            f"{self.segments:,} segments, {self.open_transactions} open transactions, "
            f"durable up to {format_lsn(self.durable_lsn)}"
        )

    def to_prometheus(self) -> str:
        """Returns the metrics in Prometheus' text format, without unknown values."""
        # The name of a slot has no characters that need escaping.
        labels = f'{{slot="{self.slot}"}}'
        lines = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "slot" or value is None:
                continue
            counts = each.name in _COUNTERS
            name = f"pgoutput_fast_capture_{each.name}{'_total' if counts else ''}"
            lines += [
                f"# HELP {name} {_HELP[each.name]}",
                f"# TYPE {name} {'counter' if counts else 'gauge'}",
                f"{name}{labels} {value if not isinstance(value, bool) else int(value)}",
            ]
        return "\n".join(lines) + "\n"


_COUNTERS = ("sessions", "messages", "payload_bytes", "segments")
_HELP = {
    "running": "1 while the capture is connected to the server, else 0.",
    "sessions": "Connections that the capture made.",
    "messages": "Messages that the capture received.",
    "payload_bytes": "Bytes of the messages that the capture received.",
    "messages_per_second": "Messages that the capture receives per second, over ten seconds.",
    "bytes_per_second": "Bytes that the capture receives per second, over ten seconds.",
    "segments": "Segments that the capture wrote.",
    "waiting_messages": "Messages that the capture received and that are not durable yet.",
    "durable_lsn": "Everything that committed up to this position is durable.",
    "confirmed_lsn": "Position that the server knows as confirmed.",
    "server_lsn": "End of the server's WAL.",
    "lag_bytes": "Bytes of WAL from the confirmed position to the end of the server's WAL.",
    "lag_seconds": "Everything that committed longer ago is durable. An upper bound.",
    "kept_bytes": "Bytes of WAL that the server keeps for the slot.",
    "open_transactions": "Transactions that have begun and not ended, at the end of the segments.",
}


def _format(value: float | None, unit: str, form: str) -> str:
    return f"unknown{unit}" if value is None else f"{value:{form}}{unit}"


class Meter:
    """Counts what a capture does. All methods are thread-safe.

    Args:
        dsn: connection string of the slot's database.
        slot: the slot's name.
    """

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn = dsn
        self._slot = slot
        self._lock = threading.Lock()
        self._sessions = 0
        self._before = RecorderProgress()
        self._progress: Callable[[], RecorderProgress] | None = None
        # (monotonic seconds, messages, bytes) and (monotonic seconds, the server's position)
        self._samples: deque[tuple[float, int, int]] = deque()
        self._looks: deque[tuple[float, int]] = deque(maxlen=_MOST_LOOKS)
        self._asking = threading.Lock()
        self._answer: _Answer | None = None

    @contextmanager
    def session(self, progress: Callable[[], RecorderProgress]) -> Iterator[None]:
        """While the block runs, `progress` returns what is durable. The block is one connection."""
        with self._lock:
            self._sessions += 1
            self._progress = progress
            if not self._samples:
                self._samples.append((time.monotonic(), 0, 0))
        try:
            yield
        finally:
            with self._lock:
                self._before = self._total()
                self._progress = None

    def _total(self) -> RecorderProgress:
        before = self._before
        if self._progress is None:
            return before
        here = self._progress()
        return RecorderProgress(
            before.messages + here.messages,
            before.nbytes + here.nbytes,
            before.segments + here.segments,
            before.stored + here.stored,
            max(before.durable_lsn, here.durable_lsn),
            here.open_transactions,
            here.committed_at or before.committed_at,
        )

    def read(self, within_seconds: float = 0.0) -> Metrics:
        """Returns the current metrics. Queries the server through a separate session.

        Args:
            within_seconds: an answer of the server this recent may be reused.
        """
        answer = self._answered(within_seconds)
        now = time.monotonic()
        asked = answer.values
        with self._lock:
            total, running = self._total(), self._progress is not None
            self._samples.append((now, total.messages, total.nbytes))
            while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_SECONDS:
                self._samples.popleft()
            then, messages, nbytes = self._samples[0]
            passed = max(now - then, 1e-3)
            rates = ((total.messages - messages) / passed, (total.nbytes - nbytes) / passed)
            confirmed = server = kept = lag = seconds = None
            if asked is not None:
                confirmed, server, kept, server_time = asked
                if answer.is_new:
                    self._looks.append((answer.at, server))
                lag = max(server - confirmed, 0) if confirmed is not None else None
                durable = max(total.durable_lsn, confirmed or 0)
                bounds = [now - at for at, position in self._looks if position <= durable]
                if total.committed_at is not None:
                    bounds.append((server_time - total.committed_at) / 1e6 + now - answer.at)
                seconds = max(min(bounds), 0.0) if bounds else None
            return Metrics(
                self._slot, running, self._sessions, total.messages, total.nbytes, *rates, total.segments,
                max(total.messages - total.stored, 0), total.durable_lsn, confirmed, server, lag, seconds, kept,
                total.open_transactions,
            )  # fmt: skip

    def _answered(self, within_seconds: float) -> _Answer:
        """Returns the server's answer. Calls that may share an answer wait for a pending one."""
        if within_seconds <= 0:
            return _Answer(time.monotonic(), self._ask(), True)
        with self._asking:
            last = self._answer
            if last is not None and time.monotonic() - last.at < within_seconds:
                return replace(last, is_new=False)
            values = self._ask()
            self._answer = _Answer(time.monotonic(), values, True)
            return self._answer

    def _ask(self) -> tuple[int | None, int, int | None, int] | None:
        """Returns (confirmed LSN, end of the WAL, bytes kept, the server's clock), or None if there is no answer."""
        try:
            with session(self._dsn, connect_timeout=_ASK_SECONDS) as cursor:
                cursor.execute(f"SET statement_timeout = '{_ASK_SECONDS}s'")
                found = read_slot(cursor, self._slot)
                cursor.execute(_SERVER)
                position, clock = cursor.fetchone()
        except psycopg2.Error:
            return None
        return (found.confirmed_flush_lsn, position, found.kept_bytes, clock) if found else None


@dataclass(frozen=True)
class _Answer:
    """An answer of the server.

    Attributes:
        at: monotonic seconds.
        values: the result of `_ask`.
        is_new: whether no earlier call returned it.
    """

    at: float
    values: tuple[int | None, int, int | None, int] | None
    is_new: bool


_SERVER = f"""
SELECT {FLUSHED_LSN},
       (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8
"""


# ---- reports -------------------------------------------------------------------------------------------------------


class MetricsReport(Protocol):
    """Metrics at one moment. As a text, they are a line for a log."""

    def to_prometheus(self) -> str:
        """Returns the metrics in Prometheus' text format."""


class Reporter(Protocol):
    """Provides metrics, in any thread."""

    def read(self, within_seconds: float = 0.0) -> MetricsReport:
        """Returns the current metrics. Metrics read this recently by another call may be reused."""


@contextmanager
def reporting(
    meter: Reporter,
    *,
    log_seconds: float | None,
    file: Path | None,
    address: str | None,
) -> Iterator[None]:
    """During the block, writes log lines, replaces a file repeatedly, and serves a page for Prometheus to scrape.

    Args:
        meter: the source of the metrics.
        log_seconds: how often a line is logged; None for never.
        file: written atomically every ten seconds and at the end.
        address: `host:port` of the page.

    Raises:
        ValueError: for a malformed address.
        OSError: if the address cannot be used.
    """
    stop = threading.Event()
    threads: list[threading.Thread] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_join, threads)
        if address is not None:
            threads.append(
                threading.Thread(target=_serve, args=(stack.enter_context(_server(meter, address)),))
            )
        if log_seconds is not None:
            threads.append(
                threading.Thread(target=_repeat, args=(stop, log_seconds, lambda: _log_metrics(meter)))
            )
        if file is not None:
            threads.append(
                threading.Thread(target=_repeat, args=(stop, _FILE_SECONDS, lambda: _put(meter, file, stop)))
            )
        for thread in threads:
            thread.daemon = True
            thread.start()
        try:
            yield
        finally:
            stop.set()
    if file is not None:
        _put(meter, file)


def _join(threads: Sequence[threading.Thread]) -> None:
    """Waits for threads, but not as long as an unavailable server or store may take to answer."""
    deadline = time.monotonic() + _END_SECONDS
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, deadline - time.monotonic()))


def _repeat(stop: threading.Event, seconds: float, act: Callable[[], None]) -> None:
    while not stop.wait(seconds):
        act()


def _log_metrics(meter: Reporter) -> None:
    _log.info("%s", meter.read())


def _put(meter: Reporter, file: Path, stop: threading.Event | None = None) -> None:
    text = meter.read().to_prometheus()
    if stop is not None and stop.is_set():
        return  # the server answered late: the last metrics may be there already
    hidden = file.with_name(hidden_name(file.name))
    try:
        hidden.write_text(text)
        os.replace(hidden, file)
    except OSError as problem:
        # The capture does not depend on this file.
        _log.warning("the metrics cannot be written to %s: %s", file, problem.strerror or problem)
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)


class _Page(http.server.BaseHTTPRequestHandler):
    meter: Reporter
    timeout = _CLIENT_SECONDS  # of each read and write

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        body = self.meter.read(_SHARED_SECONDS).to_prometheus().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: Prometheus requests a page every few seconds."""


class _PageServer(http.server.ThreadingHTTPServer):
    """Serves a limited number of clients. One more client replaces the one with the oldest connection.

    A normal client requests and reads the page at once, so this removes clients that only connect.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._free_places = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._clients: dict[Any, None] = {}  # in order of connection
        self._changing = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._free_places.acquire(timeout=0.01 if self._clients else _CLIENT_SECONDS):
            with self._changing:
                longest = next(iter(self._clients), None)
                self._clients.pop(longest, None)
                if longest is not None:
                    with contextlib.suppress(OSError):
                        longest.shutdown(socket.SHUT_RDWR)
        with self._changing:
            self._clients[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread is available
            self._left(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left(request)

    def _left(self, request: Any) -> None:
        with self._changing:
            self._clients.pop(request, None)
        self._free_places.release()

    def server_close(self) -> None:
        """Ends the connections, and waits for their threads, as `_join` does."""
        super().server_close()
        with self._changing:
            for each in self._clients:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _END_SECONDS
        for _ in range(_MOST_CLIENTS):
            if not self._free_places.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: clients may disconnect at any time."""


@contextmanager
def _server(meter: Reporter, address: str) -> Iterator[http.server.ThreadingHTTPServer]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ValueError(f"the address of metrics must be host:port, not {address!r}")
    try:
        server = _PageServer((host, int(port)), type("Page", (_Page,), {"meter": meter}))
    except OSError as problem:
        problem.add_note(f"The address of metrics is {address}: give one of this machine that is free")
        raise
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _serve(server: http.server.ThreadingHTTPServer) -> None:
    server.serve_forever(poll_interval=0.2)
