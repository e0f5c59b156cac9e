"""The replication stream of a slot: payloads in batches, and what was made durable said back in good time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.capture.errors import SilentError
from pgoutput_fast.capture.link import CopyLink
from pgoutput_fast.capture.session import connect
from pgoutput_fast.framing import unframe

__all__ = ["Received", "Walsender"]

_STATUS_SECONDS = 5.0
# wal_sender_timeout is a minute, but may have been set to less: so many statuses are sent in that time.
_STATUSES = 4
# A server sends each message by itself. So long a batch is filled before it is handed on.
_FILL_SECONDS = 0.05
# In the middle of a large transaction a server answers late.
_END_SECONDS = 2.0

_TIMEOUT = (
    "SELECT setting::pg_catalog.int4 FROM pg_catalog.pg_settings "
    "WHERE name OPERATOR(pg_catalog.=) 'wal_sender_timeout'"
)


@dataclass
class Received:
    """Messages in the order in which they came.

    Attributes:
        payloads: what the plugin wrote; a binary or large binary array.
        lsns: int64 of each message, its frame's start LSN.
        nbytes: of the payloads.
        starts_session: whether a decoding session begins before the first of them.
    """

    payloads: pa.Array = field(default_factory=lambda: pa.array([], pa.binary()))
    lsns: pa.Int64Array = field(default_factory=lambda: pa.array([], pa.int64()))
    nbytes: int = 0
    starts_session: bool = False


class Walsender:
    """A slot's stream from a position on.

    Args:
        dsn: of the slot's database.
        slot: its name.
        options: the plugin's, as `plugin_options` gives them.
        start_lsn: transactions whose commit ends there or before are not sent; 0 for what was acknowledged.
        status_seconds: so often the server hears how far this is; oftener if its wal_sender_timeout demands it.
        silent_seconds: a connection on which the server answers nothing for so long is lost; 0 for never. A longer
            wal_sender_timeout goes over it: a server that is busy decoding looks for questions twice in that time.
        hear: as of `CopyLink`: what the server says beside the stream.

    Raises:
        psycopg2.Error: if the server refuses, for instance because somebody else uses the slot.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        options: dict[str, str],
        start_lsn: int = 0,
        status_seconds: float = _STATUS_SECONDS,
        *,
        silent_seconds: float = 0.0,
        hear: Callable[[str, str], object] | None = None,
    ) -> None:
        self._connection = connect(dsn, replication=True)
        try:
            self._cursor: Any = self._connection.cursor()
            self._cursor.execute(_TIMEOUT)
            timeout = self._cursor.fetchone()[0] / 1000
            self._cursor.start_replication(
                slot_name=slot, decode=False, options=options, start_lsn=start_lsn, status_interval=60
            )
        except BaseException:
            self._connection.close()
            raise
        self._link = CopyLink(self._connection, hear)
        self._acknowledged = 0
        self._wal_end = 0
        self._is_pressed = False
        self._status_seconds = min(status_seconds, timeout / _STATUSES) if timeout else status_seconds
        self._next_status = 0.0
        self._most_silent = max(silent_seconds, timeout) if silent_seconds else 0.0
        self._silent = 0.0  # seconds of waiting for the server since it said something

    def __enter__(self) -> Walsender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                # So that the last acknowledgement is heard, and the slot let go of, before this returns.
                with contextlib.suppress(psycopg2.Error):
                    self._link.end(_END_SECONDS)
        finally:
            # Also if what the server says meanwhile is an error to whoever hears it.
            self._connection.close()

    @property
    def wal_end(self) -> int:
        """How far the server was when it last said so."""
        return self._wal_end

    @property
    def acknowledged(self) -> int:
        """What the server was told last; 0 for nothing yet."""
        return self._acknowledged

    @property
    def is_pressed(self) -> bool:
        """Whether the server demanded an answer during the last read. One that shuts down does so, again and again,
        until all that it has sent is acknowledged."""
        return self._is_pressed

    def read(self, most_bytes: int, most_seconds: float, *, ask: bool = False) -> Received:
        """What comes until it is so much, or until nothing more is there; nothing after `most_seconds` of silence.

        Args:
            most_bytes: of payloads.
            most_seconds: how long the first message is waited for.
            ask: if there is none yet, have the server say how far it is: it does so by itself only now and then. Its
                answer ends the waiting.

        Raises:
            SilentError: if the server was asked and has answered nothing for too long.
            psycopg2.Error: if the connection is lost, or the server ends the stream.
            DecodeError: for what is no walsender's frame.
        """
        deadline = time.monotonic() + most_seconds
        asked = self._is_pressed = False
        first = 0.0  # what is there already
        while True:
            began, arrivals = time.monotonic(), self._link.arrivals
            frames = self._link.take(most_bytes, first, _FILL_SECONDS)
            if frames is None:
                raise psycopg2.OperationalError("the server ended the stream")
            # Only waiting counts: while a disk is slow nobody reads, and the server may have said much.
            came = len(frames) or self._link.arrivals > arrivals
            self._silent = 0.0 if came else self._silent + time.monotonic() - began
            if self._most_silent and self._silent > self._most_silent:
                raise SilentError(f"the server has answered nothing for {self._silent:.0f} s")
            heard = self._heard(frames) if len(frames) else None
            left = deadline - time.monotonic()
            if heard is not None and (len(heard.payloads) or asked):
                self.status()
                return heard
            if left <= 0:
                self.status(reply=True)
                return Received()
            self.status(force=ask, reply=True)
            asked, ask = asked or ask, False
            first = min(left, self._status_seconds)

    def _heard(self, frames: pa.Array) -> Received:
        """Takes the messages out of their frames, and answers where an answer is asked for."""
        heard = unframe(frames)
        ends = [pc.max(each).as_py() for each in (heard.wal_end, heard.keepalives.column("wal_end"))]
        self._wal_end = max(self._wal_end, *(end for end in ends if end is not None))
        if pc.any(heard.keepalives.column("reply_requested")).as_py():
            self._is_pressed = True
            self.status(force=True)
        return Received(heard.payloads, heard.lsn, heard.payloads.buffers()[2].size)

    def acknowledge(self, lsn: int) -> None:
        """Everything that committed up to there is durable: the server need not keep it. It never goes back.

        Raises:
            psycopg2.Error: if the connection is lost.
        """
        if lsn > self._acknowledged:
            self._acknowledged = lsn
            self.status(force=True)

    def status(self, *, force: bool = False, reply: bool = False) -> None:
        """Tells the server that this is alive, if it is time. To be called often while something else is waited for.

        Args:
            force: it is time.
            reply: the server is to answer with its own position.

        Raises:
            psycopg2.Error: if the connection is lost.
        """
        now = time.monotonic()
        if force or now >= self._next_status:
            self._next_status = now + self._status_seconds
            lsn = self._acknowledged
            try:
                self._cursor.send_feedback(
                    write_lsn=lsn, flush_lsn=lsn, apply_lsn=lsn, reply=reply, force=True
                )
            except psycopg2.Error:
                # The server has ended the stream, and what it said of that waits to be read.
                self._link.why(_END_SECONDS)
                raise
