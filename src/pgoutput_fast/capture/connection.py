"""One connection: reads changes of the slot, records them, and confirms what is durable."""

from __future__ import annotations

import logging
import threading

import psycopg2.errors

from pgoutput_fast.capture.confirmation import Confirmation, confirm
from pgoutput_fast.capture.metrics import Meter
from pgoutput_fast.capture.preparation import SlotSettings, StartPoint, expect_usable
from pgoutput_fast.capture.recorder import Limits, Recorder
from pgoutput_fast.capture.retries import Retries
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.capture.sql_source import PeekLoop, SqlSource
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.postgres.slots import find_slot
from pgoutput_fast.postgres.walsender import Walsender
from pgoutput_fast.protocol.limits import RECEIVED_BYTES
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["Connection"]

_log = logging.getLogger("pgoutput_fast.capture")

_READ_SECONDS = 0.5
# How long to wait for the recorder before the next status message to the server.
_OFFER_SECONDS = 0.2


class Connection:
    """One connection of a capture.

    Args:
        settings: the slot.
        directory: the directory of the capture.
        limits: when a segment is cut.
        watch: checks the publications.
        meter: counts messages and connections.
        retries: is told when the connection works.
        until_lsn: the connection ends when everything committed up to this LSN is durable; None for no end.
        stop: the connection ends when this event is set.
        pause: while this event is set, nothing is read.
    """

    def __init__(
        self,
        settings: SlotSettings,
        directory: SegmentDirectory,
        limits: Limits,
        watch: Watch,
        meter: Meter,
        retries: Retries,
        *,
        until_lsn: int | None,
        stop: threading.Event,
        pause: threading.Event,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._limits = limits
        self._watch = watch
        self._meter = meter
        self._retries = retries
        self._until_lsn = until_lsn
        self._stop, self._pause = stop, pause

    def run(self, start: StartPoint) -> None:
        """Connects to the slot and captures from `start` on. Can be called again after an error.

        Raises:
            CaptureError: if a publication or the slot is missing, or a message is too large for any segment.
            psycopg2.Error: if the server refuses, or the connection is lost.
            DecodeError: if the server sends something that is not a message.
            OSError: if a segment cannot be written.
        """
        _log.info(
            "the capture reads slot %s from %s on and writes into %s",
            self._settings.slot,
            format_lsn(start.end_lsn) if start.end_lsn else "its beginning",
            self._directory,
        )
        with self._watch.explained(), self._watch:
            recorder = Recorder(self._directory, start.source, start.state, start.end_lsn, self._limits)
            with (
                self._open_source(start) as source,
                self._meter.session(lambda: recorder.progress),
                recorder,
            ):
                self._retries.mark_connected()
                if isinstance(source, SqlSource):
                    self._repeat_peeks(source, recorder, start.end_lsn)
                else:
                    self._read_stream(source, recorder)

    def _open_source(self, start: StartPoint) -> SqlSource | Walsender:
        dsn, slot, options = self._settings.dsn, self._settings.slot, dict(start.source.options)
        if self._settings.through == "sql":
            return SqlSource(dsn, slot, options, self._watch.on_warning)
        try:
            return Walsender(
                dsn,
                slot,
                options,
                start.end_lsn,
                silent_seconds=self._retries.silent_seconds,
                on_warning=self._watch.on_warning,
                owns=True,
                own_encoding=self._watch.own_encoding,
            )
        except psycopg2.errors.UndefinedObject:
            # The slot existed when `start` was determined. If it has been dropped since, explain the consequences.
            expect_usable(find_slot(dsn, slot), slot, self._directory)
            raise

    def _read_stream(self, sender: Walsender, recorder: Recorder) -> None:
        """Captures through a replication connection."""
        until_lsn = self._until_lsn
        confirmation = Confirmation(self._directory, self._watch, until_lsn)
        while not self._stop.is_set():
            if self._pause.is_set():
                # Keeps the connection alive while the server is held back.
                sender.status()
                recorder.check()
                confirm(sender, self._watch, recorder.durable_lsn)
                self._stop.wait(_OFFER_SECONDS)
                continue
            wait = min(_READ_SECONDS, self._limits.seconds)
            received = sender.read(RECEIVED_BYTES, wait, ask=until_lsn is not None)
            if len(received.payloads):
                self._retries.mark_received()
            while len(received.payloads) and not recorder.offer(received, _OFFER_SECONDS):
                sender.status()
            recorder.check()
            durable = (
                recorder.durable_lsn if len(received.payloads) else confirmation.use_pause(sender, recorder)
            )
            confirm(sender, self._watch, durable)
            if until_lsn is not None and durable >= until_lsn:
                break
        # Make the received messages durable. If the confirmation is lost, the server sends them again, and the recorder
        # skips them.
        recorder.finish(sender.status)
        confirm(sender, self._watch, recorder.durable_lsn)

    def _repeat_peeks(self, source: SqlSource, recorder: Recorder, start_lsn: int) -> None:
        """Captures through SQL."""
        PeekLoop(
            source,
            recorder,
            self._limits,
            self._watch,
            stop=self._stop,
            pause=self._pause,
            until_lsn=self._until_lsn,
            expect_usable=lambda slot, durable_lsn: expect_usable(
                slot, self._settings.slot, self._directory, durable_lsn
            ),
            save_confirmed=lambda lsn: self._directory.confirmed.save(lsn, now=True),
        ).run(start_lsn)
        recorder.finish()
