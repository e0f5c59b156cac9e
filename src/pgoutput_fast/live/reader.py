"""Reads a slot on a separate thread, for `follow`: connects, reconnects, and confirms what is acknowledged."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal

from pgoutput_fast.capture.confirmation import confirm
from pgoutput_fast.capture.errors import LOAD_TABLES, BehindError, CaptureError
from pgoutput_fast.capture.preparation import SlotSettings, create_own_slot
from pgoutput_fast.capture.prerequisites import Prerequisites, expect_own_plugin
from pgoutput_fast.capture.retries import Retries
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.decoding.position import Position
from pgoutput_fast.live.positions import Acknowledged, Pause, StreamPosition
from pgoutput_fast.postgres.plugin import expect_publications, plugin_options
from pgoutput_fast.postgres.session import (
    Server,
    position_of,
    read_position,
    read_server,
    session,
    with_identifier,
)
from pgoutput_fast.postgres.slots import Slot, check_name, find_slot, is_owned, read_slot
from pgoutput_fast.postgres.walsender import Received, Walsender
from pgoutput_fast.protocol.limits import RECEIVED_BYTES
from pgoutput_fast.protocol.lsn import Lsn, format_lsn

__all__ = ["Reader"]

_log = logging.getLogger("pgoutput_fast.follow")

_READ_SECONDS = 0.5
# How long to wait for the decoder before the next status message to the server.
_OFFER_SECONDS = 0.2
# Batches that wait for the decoder, of some MB each. At this number, nothing more is read from the server.
_MOST_WAITING = 4

_LOST = f"The changes in between are lost: create a new slot, and {LOAD_TABLES}"


class Reader:
    """The messages of a slot, in the order of arrival: an iterator and a context manager.

    It yields batches of messages, pauses, and None where a session begins.

    Args:
        settings: the slot.
        position: how far the stream is decoded. The consumer of the iterator advances it.
        acknowledged: what may be confirmed to the server.
        until_lsn: the LSN at which the reader of the changes will stop, or "now".
        stop: the iteration ends when this event is set.
        retry_seconds: how long one outage may last.
        receive_timeout: how long the server may be silent; 0 for any time.
        after: the position after which the changes continue; None for the slot's own.

    Raises:
        ValueError, TypeError: for an invalid name of a slot or publication, and an `until_lsn` that is not a position.
        psycopg2.Error: if the server is queried for its position and does not answer.
    """

    def __init__(
        self,
        settings: SlotSettings,
        position: StreamPosition,
        acknowledged: Acknowledged,
        *,
        until_lsn: Lsn | Literal["now"] | None,
        stop: threading.Event,
        retry_seconds: float,
        receive_timeout: float,
        after: Position | None = None,
    ) -> None:
        check_name(settings.slot)
        expect_publications(settings.publications)
        self.position = position
        self.acknowledged = acknowledged
        self.until_lsn = None if until_lsn is None else position_of(until_lsn, settings.dsn)
        self._settings = settings
        self._after = after
        if after is not None and after.slot_lsn is not None:
            position.advance(after.slot_lsn)
        self._given_stop = stop
        self._stop = threading.Event()
        self._retry_seconds = retry_seconds
        self._prerequisites = Prerequisites(settings.dsn, settings.publications, settings.slot)
        self._watch = Watch(settings.dsn, settings.publications, settings.slot, receive_timeout)
        self._retries = Retries(
            None, receive_timeout, lambda: self._prerequisites.findings, f"follow({settings.slot!r})"
        )
        self._waiting: queue.Queue[Received | Pause | None] = queue.Queue(_MOST_WAITING)
        # How many batches this thread passed on, and how many of them the other one has finished.
        self._given = self._taken = 0
        self._server: Server | None = None
        self._slot_lsn: int | None = None  # the position of the slot when this reader first acquired it
        self._failed: BaseException | None = None
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgoutput_fast follow", daemon=True)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # If the iterator is unreferenced, the garbage collector ends it in any thread, possibly in this one.
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.acknowledged.end()

    def __iter__(self) -> Iterator[Received | Pause | None]:
        while not self._given_stop.is_set():
            try:
                received = self._waiting.get(timeout=_OFFER_SECONDS)
            except queue.Empty:
                if self._has_ended.is_set() and self._waiting.empty():
                    break
                continue
            yield received
            del received
            self._taken += 1
        if self._failed is not None:
            raise self._failed

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._retries.run(self._read_connection, self._stop, self._retry_seconds)
        except BaseException as problem:
            self._failed = problem
        finally:
            self._has_ended.set()

    def _read_connection(self) -> None:
        # Received messages must be decoded first: their end is where the next session begins.
        while self._taken < self._given:
            if self._stop.wait(_OFFER_SECONDS / 10):
                return
        server = self._find_server()
        settings = self._settings
        with self._watch.explained(), self._watch:
            slot = find_slot(settings.dsn, settings.slot)
            assert slot is not None
            options = plugin_options(
                server.version, settings.publications, two_phase=slot.two_phase, overrides=settings.overrides
            )
            with Walsender(
                settings.dsn,
                settings.slot,
                options,
                self.position.decoded,
                silent_seconds=self._retries.silent_seconds,
                on_warning=self._watch.on_warning,
                own_encoding=self._watch.own_encoding,
            ) as sender:
                self._retries.mark_connected()
                self._note_own_slot(server)
                self._give(None, sender)
                self._read(sender)

    def _read(self, sender: Walsender) -> None:
        idle_lsn = 0
        while not self._stop.is_set():
            received = sender.read(RECEIVED_BYTES, _READ_SECONDS, ask=self.until_lsn is not None)
            if len(received.payloads):
                self._retries.mark_received()
                self._give(received, sender)
            elif self._taken == self._given and (sender.wal_end > idle_lsn or sender.reply_requested):
                idle_lsn = sender.wal_end
                self._give(Pause(idle_lsn, sender.reply_requested), sender)
            self._confirm(sender)
        self._confirm(sender)

    def _give(self, received: Received | Pause | None, sender: Walsender) -> None:
        self._given += 1
        while not self._stop.is_set():
            try:
                self._waiting.put(received, timeout=_OFFER_SECONDS)
                return
            except queue.Full:
                sender.status()
                self._confirm(sender)

    def _confirm(self, sender: Walsender) -> None:
        confirm(sender, self._watch, self.acknowledged.lsn)

    # ---- the server and the slot ---------------------------------------------------------------------------------

    def _find_server(self) -> Server:
        """Checks that the slot has all changes after those already yielded. Creates the slot for the first connection.

        Raises:
            CaptureError: if the slot cannot be followed.
            ValueError: for plugin options that the server does not have.
            psycopg2.Error: if the server cannot be queried or refuses.
        """
        settings = self._settings
        with session(settings.dsn) as cursor:
            server = with_identifier(read_server(cursor), settings.dsn)
            server_lsn = read_position(cursor)
            slot = read_slot(cursor, settings.slot)
            self._expect_no_owner(cursor)
        is_first = self._slot_lsn is None
        if is_first:
            self._prerequisites.check()
            if slot is None and self._after is None:
                slot = create_own_slot(settings, server)
                _log.info("created slot %s", settings.slot)
        slot = self._usable(slot)
        expect_own_plugin(slot, server)
        if is_first:
            self._expect_position(server, slot)
        else:
            self._expect_same(server, slot)
        self._expect_wal(server, server_lsn)
        self._server = server
        return server

    def _expect_no_owner(self, cursor: Any) -> None:
        """Checks that no capture reads the slot. Waits for a program that follows the same slot."""
        name = self._settings.slot
        if is_owned(cursor, name):
            raise CaptureError(
                f"a capture or a mirror reads slot {name}. A slot has one reader: what one confirms, the server sends "
                "to nobody else. Choose another name for the slot to follow: follow creates it"
            )

    def _usable(self, slot: Slot | None) -> Slot:
        name = self._settings.slot
        if slot is None:
            raise CaptureError(f"slot {name} is gone: somebody dropped it. {_LOST}")
        if slot.invalidated is not None:
            raise CaptureError(f"the server invalidated slot {name} ({slot.invalidated}). {_LOST}")
        return slot

    def _expect_position(self, server: Server, slot: Slot) -> None:
        """Checks that the slot still has everything after the position from which the changes continue."""
        if self._after is None:
            return
        limit = self._after.commit_lsn if self._after.slot_lsn is None else self._after.slot_lsn
        slot_lsn = slot.confirmed_flush_lsn or 0
        if server.major >= 11 and slot_lsn > limit:
            raise CaptureError(
                f"slot {slot.name} is confirmed up to {format_lsn(slot_lsn)}, so the server does not send again what "
                f"comes after position {self._after}: the position is too old, or of another slot, or somebody else "
                f"read from the slot. {_LOST}"
            )

    def _expect_same(self, server: Server, slot: Slot) -> None:
        """Checks that server and slot are those of the last connection, and that no other client has read the slot."""
        assert self._server is not None
        assert self._slot_lsn is not None
        if server.system_identifier != self._server.system_identifier:
            raise CaptureError(
                f"another server answers now: its system identifier is {server.system_identifier}, and was "
                f"{self._server.system_identifier}. {_LOST}"
            )
        # Before PostgreSQL 11, reading from a slot confirms its position, which may go one record further than
        # requested.
        own = max(self._slot_lsn, self.acknowledged.lsn)
        if server.major >= 11 and (slot.confirmed_flush_lsn or 0) > own:
            raise CaptureError(
                f"somebody else read from slot {slot.name}, or dropped it and created it again: it is confirmed up to "
                f"{format_lsn(slot.confirmed_flush_lsn or 0)}, but only {format_lsn(own)} was acknowledged here. "
                f"{_LOST}"
            )

    def _expect_wal(self, server: Server, server_lsn: int) -> None:
        """Checks that the server's WAL reaches the end of the changes that were yielded."""
        given = max(self.position.decoded, 0 if self._after is None else self._after.commit_lsn)
        if server_lsn < given:
            problem = BehindError if server.in_recovery else CaptureError
            raise problem(
                f"the WAL of the server ends at {format_lsn(server_lsn)}, but changes up to {format_lsn(given)} were "
                "given: somebody restored the server from an older copy, or a standby took over that lacked the last "
                f"changes. Create a new slot, and {LOAD_TABLES}"
            )

    def _note_own_slot(self, server: Server) -> None:
        """Notes the position of the slot when no other client can change it any more.

        Raises:
            CaptureError: if another client has moved the slot since `_find_server` checked.
        """
        if self._slot_lsn is None:
            slot = self._usable(find_slot(self._settings.dsn, self._settings.slot))
            self._expect_position(server, slot)
            self._slot_lsn = slot.confirmed_flush_lsn or 0
            self.position.advance(self._slot_lsn)
