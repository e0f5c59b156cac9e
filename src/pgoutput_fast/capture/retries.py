"""Decides which errors of a connection are transient, and reconnects after them."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable

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

from pgoutput_fast.capture.errors import BehindError, MovedOnError, OwnEncodingError, SilentError
from pgoutput_fast.capture.segment_directory import SegmentDirectory

__all__ = ["RETRY_SECONDS", "Retries", "is_outage"]

_log = logging.getLogger("pgoutput_fast.capture")

# How long to retry if the server or store is unavailable.
RETRY_SECONDS = 300.0
# A server repeats its work on the next connection, so silence doubles the timeout of the next one, up to this factor.
_MOST_SILENCE_FACTOR = 64
# A connection that lasted this long was good. Its loss begins a new outage.
_GOOD_SECONDS = 5.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Retries:
    """Repeats the connections of one run.

    Args:
        directory: the directory of the capture, None if nothing is stored.
        silent_seconds: how long a server may be silent; 0 for any time.
        read_findings: returns the errors found by a check. They explain why a server refuses the first connection.
        service: the subject of log lines about a lost connection.
    """

    def __init__(
        self,
        directory: SegmentDirectory | None,
        silent_seconds: float,
        read_findings: Callable[[], list[str]],
        service: str = "the capture",
    ) -> None:
        self._directory = directory
        self._silent_seconds = silent_seconds
        self._read_findings = read_findings
        self._service = service
        self._has_begun = False
        self._silence_factor = 1
        self._connected_at: float | None = None

    @property
    def silent_seconds(self) -> float:
        """How long the next connection may be silent; 0 for any time."""
        return self._silent_seconds * self._silence_factor

    def mark_connected(self) -> None:
        """Call it when a connection delivers changes: from now on its loss may be transient."""
        self._has_begun = True
        self._connected_at = time.monotonic()

    def mark_received(self) -> None:
        """Call it when messages arrive: the server is not silent."""
        self._silence_factor = 1

    def run(self, connect: Callable[[], None], stop: threading.Event, seconds: float) -> None:
        """Runs connections until one ends without an error.

        Args:
            connect: runs one connection.
            stop: no retry once this event is set.
            seconds: how long one outage may last.

        Raises:
            Exception: the error of the last connection, if it is permanent or the outage lasts too long.
        """
        lost: BaseException | None = None
        while True:
            # Each outage has its own time limit, and its pauses begin short.
            for attempt in Retrying(
                retry=retry_if_exception(self._may_pass),
                wait=wait_random_exponential(multiplier=0.2, max=10),
                stop=stop_after_delay(seconds) | stop_when_event_set(stop),
                sleep=sleep_using_event(stop),
                before_sleep=self._log_retry,
                reraise=True,
            ):
                with attempt:
                    lost = self._run_connection(connect)
            if lost is None:
                return
            _log.warning("%s lost its connection and connects again: %s", self._service, str(lost).strip())

    def _run_connection(self, connect: Callable[[], None]) -> BaseException | None:
        """Runs one connection. Returns the error that ended a good connection; raises any other error."""
        self._connected_at = None
        try:
            self._connect(connect)
        except Exception as problem:
            self._add_advice(problem)
            if isinstance(problem, SilentError):
                self._silence_factor = min(self._silence_factor * 2, _MOST_SILENCE_FACTOR)
            at = self._connected_at
            if at is None or time.monotonic() - at < _GOOD_SECONDS or not self._may_pass(problem):
                raise
            return problem
        return None

    def _connect(self, connect: Callable[[], None]) -> None:
        try:
            connect()
        except OwnEncodingError as problem:
            _log.warning("%s", problem)
            connect()

    def _add_advice(self, problem: Exception) -> None:
        if self._directory is not None and isinstance(problem, OSError) and problem.errno in _DISK_FULL:
            problem.add_note(
                f"There is no space for another segment in {self._directory}. Nothing is lost: the server keeps what "
                "is not durable, and its WAL grows meanwhile. Free some space, and run the capture again"
            )
        if isinstance(problem, psycopg2.Error) and not self._has_begun:
            for finding in self._read_findings():
                problem.add_note(finding)

    def _may_pass(self, problem: BaseException) -> bool:
        """Whether a retry may succeed."""
        if isinstance(problem, psycopg2.errors.ObjectInUse | MovedOnError | BehindError):
            return True
        return self._has_begun and is_outage(problem, local=self._directory is None or self._directory.local)

    def _log_retry(self, outcome: RetryCallState) -> None:
        """Logs the error before a pause."""
        problem = outcome.outcome.exception() if outcome.outcome is not None else None
        seconds = outcome.next_action.sleep if outcome.next_action is not None else 0.0
        _log.warning("%s tries again in %.1f s: %s", self._service, seconds, str(problem).strip())


def is_outage(problem: BaseException, *, local: bool) -> bool:
    """Whether an error can mean that a server or a store is temporarily unavailable.

    Args:
        problem: the error.
        local: whether files are on this machine.
    """
    # Errors of a store may be transient; a local disk does not recover by itself. Of the more specific errors
    # (permissions, existing files) only these two may be transient.
    if isinstance(problem, ConnectionError | TimeoutError) or type(problem) is OSError:
        return not local and problem.errno not in _DISK_FULL
    # psycopg2 reports a lost stream as an error of its current operation, without an SQLSTATE from a server.
    return isinstance(problem, psycopg2.OperationalError | psycopg2.InterfaceError) or (
        isinstance(problem, psycopg2.DatabaseError) and problem.pgcode is None
    )
