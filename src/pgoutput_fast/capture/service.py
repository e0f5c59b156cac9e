"""Captures a slot into segments, without a gap and without a duplicate message, after any kind of interruption."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import psycopg2
import psycopg2.errors
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.capture.confirmed import FILE, ConfirmedPosition
from pgoutput_fast.capture.errors import (
    BehindError,
    CaptureBusyError,
    CaptureError,
    MovedOnError,
    SilentError,
)
from pgoutput_fast.capture.metrics import Meter, Metrics, reporting
from pgoutput_fast.capture.recorder import Limits, Recorder
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.capture.sink import Sink
from pgoutput_fast.capture.sql_source import SqlSource, read_into
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.postgres.check import check
from pgoutput_fast.postgres.findings import Finding
from pgoutput_fast.postgres.plugin import plugin_options
from pgoutput_fast.postgres.session import position_of, read_position, read_server, session, with_identifier
from pgoutput_fast.postgres.slots import Slot, create_slot, read_slots
from pgoutput_fast.postgres.walsender import Walsender
from pgoutput_fast.protocol.limits import RECEIVED_BYTES
from pgoutput_fast.protocol.lsn import Lsn, format_lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.segment import Segment, Source

__all__ = ["Capture", "CaptureBusyError", "CaptureError"]

_log = logging.getLogger("pgoutput_fast.capture")

_READ_SECONDS = 0.5
# How long to wait for a server that is away.
_RETRY_SECONDS = 300.0
# How long a walsender may leave a question unanswered. PostgreSQL's own subscribers wait as long
# (wal_receiver_timeout).
_SILENT_SECONDS = 60.0
# A server repeats its work on the next connection. So after a silent connection, the next one gets more time.
_MOST_PATIENCE = 64
# A connection that lasted this long was good. Its loss begins a new outage.
_GOOD_SECONDS = 5.0
# At most this many tables with the same finding are named.
_MOST_ALIKE = 5
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Capture:
    """Writes what a slot sends into segments.

    Messages are durable before the capture confirms them to the server, and the server does not send durable messages
    again. After a kill, a capture goes on after its newest segment.

    Args:
        dsn: of the database.
        slot: the slot's name; it is created if neither the slot nor a segment exists.
        publications: names of the publications, without SQL quotes.
        directory: of the segments; it is created. A path, or a URI that `pyarrow.fs` knows, such as
            `s3://bucket/prefix`.
        two_phase: whether a new slot decodes prepared transactions when they are prepared.
        overrides: plugin options that replace those of `plugin_options`.
        limits: when a segment is cut.
        through: `walsender` for a replication connection; `sql` for peeks through an ordinary connection, one each time
            a segment reaches its `seconds` limit. You can continue the same directory either way.
        retention: which segments are removed after a segment was written; None for none.
        typed: whether to write committed changes also as typed Parquet files, in `typed/` below the directory.
            `Options` say how to decode. By default, what cannot be decoded goes to `typed/_rejects/`.
        file_mode: the most permissions of segments and typed files, such as 0o640; directories get matching
            permissions. None leaves them to the umask.
        log_seconds: how often a line with the metrics is logged (`pgoutput_fast.capture`, level INFO); None for never.
        metrics_file: a file that gets the metrics every ten seconds, for Prometheus' node exporter.
        metrics_address: `host:port` where Prometheus can scrape the metrics.
        receive_timeout: seconds after which a server that answers nothing counts as lost, although its system
            acknowledges packets. A longer wal_sender_timeout of a walsender takes precedence. None for never. A peek
            has no time limit.

    Raises:
        TypeError: if `publications` is a text instead of a list.
        ValueError: for another wrong argument.

    >>> Limits(seconds=1.0)
    Limits(rows=1000000, nbytes=67108864, seconds=1.0)
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        directory: str | os.PathLike[str],
        *,
        two_phase: bool = False,
        overrides: Mapping[str, str | None] | None = None,
        limits: Limits | None = None,
        through: Literal["walsender", "sql"] = "walsender",
        retention: Retention | None = None,
        typed: bool | Options = False,
        file_mode: int | None = None,
        log_seconds: float | None = None,
        metrics_file: str | os.PathLike[str] | None = None,
        metrics_address: str | None = None,
        receive_timeout: float | None = _SILENT_SECONDS,
    ) -> None:
        expect_list("publications", publications)
        if through not in ("walsender", "sql"):
            raise ValueError(f"through must be 'walsender' or 'sql', not {through!r}")
        if receive_timeout is not None and not receive_timeout > 0:
            raise ValueError("receive_timeout must be positive, or None for never")
        self._receive_timeout = receive_timeout or 0.0
        self._through = through
        self._dsn = dsn
        self._slot = slot
        self._publications = tuple(publications)
        self._directory = Sink(directory, retention, _typed_options(typed), file_mode)
        self._two_phase = two_phase
        self._overrides = dict(overrides or {})
        self._limits = limits if limits is not None else Limits()
        self._begin_anew()
        self._connected_at: float | None = None
        self._meter = Meter(dsn, slot)
        self._log_seconds = log_seconds
        self._metrics_file = Path(metrics_file) if metrics_file is not None else None
        self._metrics_address = metrics_address

    @property
    def metrics(self) -> Metrics:
        """The current metrics, from any thread. Asks the server for its part."""
        return self._meter.read()

    def run(
        self,
        *,
        until_lsn: Lsn | Literal["now"] | None = None,
        stop: threading.Event | None = None,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        """Captures until it is told to stop. Then everything that was received is durable and confirmed to the server.

        Args:
            until_lsn: stop when everything that committed up to this LSN is durable: an LSN, as for `parse_lsn`, or
                `"now"` for the end of the server's log at the time of this call.
            stop: stop when this event is set.
            retry_seconds: how long to wait for a server or store that is away.

        Raises:
            CaptureError: if the capture cannot go on; the message says what to do.
            psycopg2.Error: if the server refuses, or is away for too long. An error at the very beginning is not
                retried. The exception is a slot that is in use: the server may not have noticed that its client died.
            OSError: if a segment cannot be written; in a store, if this lasts longer than `retry_seconds`.
            DecodeError: if the server sends something that is no message.
            ValueError, TypeError: if `until_lsn` is no position.
        """
        until = None if until_lsn is None else position_of(until_lsn, self._dsn)
        stop = stop if stop is not None else threading.Event()
        self._begin_anew()
        with (
            self._directory.owned(),
            reporting(
                self._meter,
                log_seconds=self._log_seconds,
                file=self._metrics_file,
                address=self._metrics_address,
            ),
        ):
            lost: BaseException | None = None
            while True:
                # Each outage has its own time limit, and its pauses begin short.
                for attempt in Retrying(
                    retry=retry_if_exception(self._may_pass),
                    wait=wait_random_exponential(multiplier=0.2, max=10),
                    stop=stop_after_delay(retry_seconds) | stop_when_event_set(stop),
                    sleep=sleep_using_event(stop),
                    before_sleep=_say,
                    reraise=True,
                ):
                    with attempt:
                        lost = self._outlive(until, stop)
                if lost is None:
                    return
                _log.warning("the connection is lost and made again: %s", str(lost).strip())

    def _begin_anew(self) -> None:
        self._has_begun = False
        self._patience = 1
        self._watch = Watch(self._dsn, self._publications, self._slot, self._receive_timeout)
        # Findings of a check that may prevent the capture; None before the first check.
        self._doubts: list[str] | None = None

    def _outlive(self, until_lsn: int | None, stop: threading.Event) -> BaseException | None:
        """Runs one connection. Returns the error that ended a good connection; raises any other error."""
        self._connected_at = None
        try:
            self._session(until_lsn, stop)
        except Exception as problem:
            if isinstance(problem, OSError) and problem.errno in _NO_ROOM:
                problem.add_note(
                    f"{self._directory} has no room for another segment. Nothing is lost: the server keeps what is not "
                    "durable, and its WAL grows meanwhile. Make room, and run the capture again"
                )
            if isinstance(problem, psycopg2.Error) and not self._has_begun:
                for doubt in self._doubts or []:
                    problem.add_note(doubt)
            if isinstance(problem, SilentError):
                self._patience = min(self._patience * 2, _MOST_PATIENCE)
            at = self._connected_at
            if at is None or time.monotonic() - at < _GOOD_SECONDS or not self._may_pass(problem):
                raise
            return problem
        return None

    def _may_pass(self, problem: BaseException) -> bool:
        """Whether another try may succeed."""
        if isinstance(problem, psycopg2.errors.ObjectInUse | MovedOnError | BehindError):
            return True
        # Errors of a store may pass; a local disk does not recover by itself. Of the more specific errors (permissions,
        # existing files) only these two may pass.
        if isinstance(problem, ConnectionError | TimeoutError) or type(problem) is OSError:
            return self._has_begun and not self._directory.local and problem.errno not in _NO_ROOM
        # psycopg2 reports a lost stream as an error of its current operation. The error then has no SQLSTATE from a
        # server.
        lost = isinstance(problem, psycopg2.OperationalError | psycopg2.InterfaceError) or (
            isinstance(problem, psycopg2.DatabaseError) and problem.pgcode is None
        )
        return lost and self._has_begun

    def _session(self, until_lsn: int | None, stop: threading.Event) -> None:
        """Runs one connection."""
        newest = self._directory.newest()
        noted = self._directory.acknowledged
        source = self._prepare(newest, noted)
        state: StreamState | None = None
        end_lsn = 0
        if newest is not None:
            if newest.source != source:
                raise CaptureError(
                    f"{self._directory} has segments of another source: {newest.source} instead of {source}. "
                    "Capture into another directory"
                )
            state, end_lsn = newest.state, newest.end_lsn or 0
        self._check()
        _log.info(
            "capturing from slot %s into %s, behind %s", self._slot, self._directory, format_lsn(end_lsn)
        )
        with self._watch.explained(), self._watch:
            if self._through == "sql":
                self._pull(source, state, end_lsn, until_lsn, stop)
            else:
                self._stream(source, state, end_lsn, until_lsn, stop)

    def _stream(
        self,
        source: Source,
        state: StreamState | None,
        end_lsn: int,
        until_lsn: int | None,
        stop: threading.Event,
    ) -> None:
        """Captures through a replication connection."""
        watch, noted = self._watch, self._directory.acknowledged
        recorder = Recorder(self._directory, source, state, end_lsn, self._limits)
        with (
            Walsender(
                self._dsn,
                self._slot,
                dict(source.options),
                end_lsn,
                silent_seconds=self._receive_timeout * self._patience,
                hear=watch.hear,
            ) as sender,
            self._meter.session(lambda: recorder.progress),
            recorder,
        ):
            self._begin()
            while not stop.is_set():
                wait = min(_READ_SECONDS, self._limits.seconds)
                received = sender.read(RECEIVED_BYTES, wait, ask=until_lsn is not None)
                if len(received.payloads):
                    self._patience = 1
                while len(received.payloads) and not recorder.offer(received, 0.2):
                    sender.status()
                recorder.check()
                durable = recorder.durable_lsn
                if not len(received.payloads):
                    # A server that shuts down waits for the confirmation.
                    hurry = sender.is_pressed or (until_lsn is not None and sender.wal_end >= until_lsn)
                    if recorder.idle and sender.wal_end > durable:
                        # All earlier commits have been received. So the position is confirmed, and an idle slot
                        # releases WAL, too.
                        durable = max(durable, noted.confirm(sender.wal_end, now=hurry))
                    elif hurry:
                        recorder.flush()
                self._acknowledge(sender, durable)
                if until_lsn is not None and durable >= until_lsn:
                    break
            # Make the received messages durable. If the server misses the confirmation it sends them again, and they
            # are left out.
            recorder.finish(sender.status)
            self._acknowledge(sender, recorder.durable_lsn)

    def _acknowledge(self, sender: Walsender, durable: int) -> None:
        """Confirms what is durable, if the publications existed until then."""
        if durable > sender.acknowledged or self._watch.is_due:
            self._watch.look(sender.status)
        sender.acknowledge(durable)
        self._watch.stands = max(self._watch.stands, durable)

    def _pull(
        self,
        source: Source,
        state: StreamState | None,
        end_lsn: int,
        until_lsn: int | None,
        stop: threading.Event,
    ) -> None:
        """Captures through SQL."""
        recorder = Recorder(self._directory, source, state, end_lsn, self._limits)
        with (
            SqlSource(self._dsn, self._slot, source.options, self._watch.hear) as pull,
            self._meter.session(lambda: recorder.progress),
            recorder,
        ):
            self._begin()
            read_into(
                pull,
                recorder,
                self._limits,
                self._watch,
                start_lsn=end_lsn,
                until_lsn=until_lsn,
                stop=stop,
                expect_usable=self._expect_usable,
                confirm=lambda lsn: self._directory.acknowledged.confirm(lsn, now=True),
            )
            recorder.finish()

    def _begin(self) -> None:
        self._has_begun = True
        self._connected_at = time.monotonic()

    def _check(self) -> None:
        """Checks, at the beginning of a run, what prevents the capture.

        Raises:
            CaptureError: if the capture could not run, or would silently miss changes.
        """
        if self._doubts is not None:
            return
        report = check(self._dsn, self._publications, self._slot, through=self._through)
        stops = [finding for finding in report.findings if finding.stops]
        if stops:
            raise CaptureError("the capture cannot begin: " + " ".join(map(_sentence, stops)))
        alike = Counter[tuple[str, str]]()
        for finding in report.findings:
            if finding.level != "note":
                alike[finding.level, finding.problem] += 1
                if alike[finding.level, finding.problem] <= _MOST_ALIKE:
                    _log.warning("%s", finding)
        for (level, problem), count in alike.items():
            if count > _MOST_ALIKE:
                _log.warning("%s: %d more: %s. `check` names them all", level, count - _MOST_ALIKE, problem)
        self._doubts = [str(finding) for finding in report.findings if finding.level == "error"]

    def _expect_usable(self, found: Slot | None, left: int | None = None) -> Slot:
        """Returns the slot if the capture can continue from it. Segments of the slot exist already.

        Raises:
            CaptureError: if the slot is gone, invalidated or ahead of `left`: changes after the segments are lost.
        """
        if found is None:
            raise CaptureError(
                f"slot {self._slot} is gone, but {self._directory} has segments of it: what was changed since is lost. "
                "Make a new slot, load the tables again, and capture into another directory"
            )
        if found.invalidated is not None:
            raise CaptureError(
                f"slot {self._slot} was invalidated ({found.invalidated}): what was changed since is lost. "
                "Drop it, make a new one, load the tables again, and capture into another directory"
            )
        if left is not None and found.confirmed_flush_lsn is not None and found.confirmed_flush_lsn > left:
            raise CaptureError(
                f"somebody else has advanced slot {self._slot} to {format_lsn(found.confirmed_flush_lsn)}, but "
                f"{self._directory} goes up to {format_lsn(left)}: what committed in between is lost. Find the "
                "other one; then make a new slot, load the tables again, and capture into another directory"
            )
        return found

    def _prepare(self, newest: Segment | None, noted: ConfirmedPosition) -> Source:
        """Returns the source of the capture. Creates the slot if nothing was captured before."""
        has_begun = newest is not None or noted.lsn is not None
        with session(self._dsn) as cursor:
            server = with_identifier(read_server(cursor), self._dsn)
            position = read_position(cursor)
            found = next(iter(read_slots(cursor, self._slot)), None)
        if not has_begun:
            self._check()
        if found is None and not has_begun:
            found = create_slot(self._dsn, self._slot, two_phase=self._two_phase)
            _log.info("created slot %s", self._slot)
        found = self._expect_usable(found)
        if (found.plugin, found.database) != ("pgoutput", server.database):
            raise CaptureError(
                f"slot {self._slot} is of plugin {found.plugin} and database {found.database}: take another name"
            )
        stands = found.confirmed_flush_lsn or 0
        self._watch.stands = max(self._watch.stands, stands)
        known = max((newest.end_lsn if newest is not None else None) or 0, noted.lsn or 0)
        if not has_begun:
            # While another client uses the slot, this capture has not begun: what that client confirms is not here.
            if found.active_pid is None:
                noted.confirm(stands, now=True)
        # Before PostgreSQL 11, reading from a slot confirms its position, which may go one record further than
        # requested.
        elif server.major >= 11 and stands > known:
            raise CaptureError(
                f"slot {self._slot} stands at {format_lsn(stands)}, but this capture let go of it "
                f"only up to {format_lsn(known)}: somebody else read from it, or dropped it and made it anew. What "
                "committed in between may be lost: load the tables again, and capture into another directory. (If "
                f"{self._directory} was moved without its {FILE}, bring that file along)"
            )
        if position < known:
            # New commits would have positions that the segments have passed already. The stream would skip them.
            problem = BehindError if server.in_recovery else CaptureError
            more = " (This is a standby: it may only have to replay more)" if server.in_recovery else ""
            raise problem(
                f"the server stands at {format_lsn(position)}, but {self._directory} goes up to {format_lsn(known)}: "
                "it was brought back from an older copy, or a standby took over that lacked what came last. What the "
                "segments have beyond it, it has not. Make a new slot, load the tables again, and capture into another "
                f"directory.{more}"
            )
        options = plugin_options(
            server.version, self._publications, two_phase=found.two_phase, overrides=self._overrides
        )
        return Source(
            server.system_identifier, server.database, self._slot, tuple(sorted(self._publications)), options
        )


def _say(outcome: RetryCallState) -> None:
    """Logs the error before a pause."""
    problem = outcome.outcome.exception() if outcome.outcome is not None else None
    seconds = outcome.next_action.sleep if outcome.next_action is not None else 0.0
    _log.warning("trying again in %.1f s: %s", seconds, str(problem).strip())


def _sentence(finding: Finding) -> str:
    return f"{finding.subject}: {finding.problem}. {finding.advice}."


def _typed_options(typed: bool | Options) -> Options | None:
    if isinstance(typed, Options):
        return typed
    return Options(on_error="quarantine") if typed else None
