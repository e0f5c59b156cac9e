"""Captures a slot into segments, without gaps or duplicate messages, after any kind of interruption."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import escaped, html_table, some_of
from pgoutput_fast.capture.connection import Connection
from pgoutput_fast.capture.errors import CaptureBusyError, CaptureError
from pgoutput_fast.capture.metrics import Meter, Metrics, reporting
from pgoutput_fast.capture.preparation import Preparation, SlotSettings
from pgoutput_fast.capture.recorder import Limits
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.capture.retries import RETRY_SECONDS, Retries
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.postgres.errors import StoppedError
from pgoutput_fast.postgres.interruptible import stopping
from pgoutput_fast.postgres.session import describe_database, position_of
from pgoutput_fast.protocol.lsn import Lsn

__all__ = ["Capture", "CaptureBusyError", "CaptureError", "run_in_turn"]

# How long a walsender may leave a request unanswered: the default of PostgreSQL's own subscribers
# (wal_receiver_timeout).
_SILENT_SECONDS = 60.0
# How often a waiting capture checks whether the other one has ended.
_TURN_SECONDS = 1.0


class Capture:
    """Writes the messages of a slot into segments.

    Messages are durable before the capture confirms them to the server, and the server does not send durable messages
    again. After a kill, a capture continues after its newest segment.

    Args:
        dsn: connection string of the database.
        slot: the slot's name; it is created if neither the slot nor a segment exists.
        publications: names of the publications, without SQL quotes.
        directory: directory of the segments, created if necessary. A path, or a URI that `pyarrow.fs` knows, such as
            `s3://bucket/prefix`.
        two_phase: whether a new slot decodes prepared transactions when they are prepared.
        failover: whether standbys may have the slot, so that it outlives a failover (17 and later). A slot that exists
            gets the property, too. False leaves it as it is.
        adopt: whether a first capture may take a slot that another client has read. The segments begin at the slot's
            position.
        overrides: plugin options that replace those of `plugin_options`.
        limits: when a segment is cut.
        through: `walsender` for a replication connection; `sql` for peeks through an ordinary connection, at the
            interval of the segments' `seconds` limit. The same directory can be continued either way.
        retention: which segments are removed after a segment is written; None for none.
        file_mode: the most permissions of segments, such as 0o640; directories get matching permissions. None leaves
            them to the umask.
        compressed: whether segments are compressed (zstd). False takes less time and about twice the space: it pays if
            segments are removed soon.
        log_seconds: how often a line with the metrics is logged (`pgoutput_fast.capture`, level INFO); None for never.
        metrics_file: a file that gets the metrics every ten seconds, for Prometheus' node exporter.
        metrics_address: `host:port` where Prometheus can scrape the metrics.
        receive_timeout: seconds after which an unresponsive server counts as lost, although its system acknowledges
            packets. A longer wal_sender_timeout of a walsender takes precedence. None for never. A peek has no time
            limit.

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
        failover: bool = False,
        adopt: bool = False,
        overrides: Mapping[str, str | None] | None = None,
        limits: Limits | None = None,
        through: Literal["walsender", "sql"] = "walsender",
        retention: Retention | None = None,
        file_mode: int | None = None,
        compressed: bool = True,
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
        self._settings = SlotSettings(
            dsn, slot, tuple(publications), through, two_phase, dict(overrides or {}), adopt, failover
        )
        self._directory = SegmentDirectory(directory, retention, file_mode, compressed=compressed)
        self._limits = limits if limits is not None else Limits()
        self._receive_timeout = receive_timeout or 0.0
        self._meter = Meter(dsn, slot)
        self._log_seconds = log_seconds
        self._metrics_file = Path(metrics_file) if metrics_file is not None else None
        self._metrics_address = metrics_address

    def __repr__(self) -> str:
        return f"<Capture: {', '.join(f'{name} {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        return html_table("Capture", ["", ""], self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """What identifies the capture, without secrets or a query to the server."""
        settings = self._settings
        return [
            ("slot", escaped(settings.slot)),
            ("of", describe_database(settings.dsn)),
            ("publications", escaped(some_of(settings.publications))),
            ("through", settings.through),
            ("to", escaped(str(self._directory))),
        ]

    @property
    def metrics(self) -> Metrics:
        """The current metrics, from any thread. Queries the server for its part."""
        return self._meter.read()

    def run(
        self,
        *,
        until_lsn: Lsn | Literal["now"] | None = None,
        stop: threading.Event | None = None,
        retry_seconds: float = RETRY_SECONDS,
        pause: threading.Event | None = None,
    ) -> None:
        """Captures until stopped. Then everything received is durable and confirmed to the server.

        Args:
            until_lsn: stop when everything committed up to this LSN is durable: an LSN, as for `parse_lsn`, or `"now"`
                for the end of the server's log at the time of this call.
            stop: stop when this event is set.
            retry_seconds: how long to retry if the server or store is unavailable.
            pause: while this event is set, nothing more is read from the server, which keeps it. The connection stays
                open, and durable positions are confirmed.

        Raises:
            CaptureError: if the capture cannot continue; the message says what to do.
            psycopg2.Error: if the server refuses, or is unavailable for too long. An error at the very beginning is not
                retried. The exception is a slot that is in use: the server may not have noticed that its client died.
            OSError: if a segment cannot be written; in a store, if this lasts longer than `retry_seconds`.
            DecodeError: if the server sends something that is not a message.
            ValueError, TypeError: if `until_lsn` is not a position.
        """
        stop = stop if stop is not None else threading.Event()
        pause = pause if pause is not None else threading.Event()
        with suppress(StoppedError), stopping(stop):
            self._run(until_lsn, stop, retry_seconds, pause)

    def _run(
        self, until_lsn: Lsn | None, stop: threading.Event, retry_seconds: float, pause: threading.Event
    ) -> None:
        settings = self._settings
        until = None if until_lsn is None else position_of(until_lsn, settings.dsn)
        watch = Watch(settings.dsn, settings.publications, settings.slot, self._receive_timeout)
        preparation = Preparation(settings, self._directory, watch)
        retries = Retries(self._directory, self._receive_timeout, lambda: preparation.findings)
        connection = Connection(
            settings,
            self._directory,
            self._limits,
            watch,
            self._meter,
            retries,
            until_lsn=until,
            stop=stop,
            pause=pause,
        )
        with (
            self._directory.owned(),
            reporting(
                self._meter,
                log_seconds=self._log_seconds,
                file=self._metrics_file,
                address=self._metrics_address,
            ),
        ):
            retries.run(lambda: connection.run(preparation.find_start()), stop, retry_seconds)


def run_in_turn(capture: Capture, stop: threading.Event, *, wait: bool, **arguments: Any) -> None:
    """Runs a capture, optionally after another one.

    Args:
        stop: stops it, and the wait.
        wait: if another process captures into the directory, wait until it has ended.
        arguments: other arguments of `Capture.run`.

    Raises:
        CaptureBusyError: if another process captures into the directory, and still does after a wait.
        Exception: as `Capture.run`.
    """
    while True:
        try:
            return capture.run(stop=stop, **arguments)
        except CaptureBusyError:
            if not wait or stop.wait(_TURN_SECONDS):
                raise
