"""Reads the replication stream of a slot in batches, and confirms durable positions in time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.decoding.framing import unframe
from pgoutput_fast.postgres.copy_stream import CopyLink
from pgoutput_fast.postgres.errors import SilentError
from pgoutput_fast.postgres.recoding import Recoder, text_options
from pgoutput_fast.postgres.session import codec_of, connect
from pgoutput_fast.postgres.slots import own
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["Received", "Walsender"]

_STATUS_SECONDS = 5.0
# Status messages per wal_sender_timeout, which is one minute by default, but may be less.
_STATUSES = 4
# A server sends messages one by one. A batch is filled for this time.
_FILL_SECONDS = 0.05
# During a large transaction the server answers late.
_END_SECONDS = 2.0

_TIMEOUT = (
    "SELECT setting::pg_catalog.int4 FROM pg_catalog.pg_settings "
    "WHERE name OPERATOR(pg_catalog.=) 'wal_sender_timeout'"
)


@dataclass
class Received:
    """Messages in the order of arrival.

    Attributes:
        payloads: the plugin's output; a binary or large binary array.
        lsns: the start LSN of each message's frame, int64.
        nbytes: bytes of the payloads.
        starts_session: whether a decoding session begins with the first message.
    """

    payloads: pa.Array = field(default_factory=lambda: pa.array([], pa.binary()))
    lsns: pa.Int64Array = field(default_factory=lambda: pa.array([], pa.int64()))
    nbytes: int = 0
    starts_session: bool = False


def _start(slot: str, start_lsn: int, options: Mapping[str, str]) -> str:
    """The command. psycopg2 would send names that are not ASCII in another encoding, which the server ignores."""
    words = ", ".join(f'"{name}" {_quoted(str(value))}' for name, value in options.items())
    return f'START_REPLICATION SLOT "{slot}" LOGICAL {format_lsn(start_lsn)} ({words})'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Walsender:
    """The stream of a slot from a position on.

    Args:
        dsn: of the slot's database.
        slot: the slot's name.
        options: the plugin's options, as from `plugin_options`.
        start_lsn: transactions whose commit ends at this LSN or before are not sent; 0 for the confirmed LSN.
        status_seconds: interval of status messages; shorter if the server's wal_sender_timeout requires it.
        silent_seconds: the connection counts as lost after this time without an answer; 0 for never. A longer
            wal_sender_timeout takes precedence: a server that is busy decoding reads requests twice in that time.
        on_warning: as in `CopyLink`: receives the server's warnings.
        owns: whether to mark the slot as owned by a capture meanwhile.
        own_encoding: whether the server sends texts in the encoding of the database, to be converted here. Then it
            sends no value in binary.

    Raises:
        psycopg2.Error: if the server refuses, for instance because another client uses the slot.
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
        on_warning: Callable[[str, str], object] | None = None,
        owns: bool = False,
        own_encoding: bool = False,
    ) -> None:
        self._connection = connect(dsn, replication=True, values=True, own_encoding=own_encoding)
        try:
            self._cursor: Any = self._connection.cursor()
            if owns:
                own(self._cursor, slot)
            self._cursor.execute(_TIMEOUT)
            timeout = self._cursor.fetchone()[0] / 1000
            codec = codec_of(self._connection) if own_encoding else None
            self._recoder = Recoder(codec) if codec is not None else None
            if self._recoder is not None:
                options = text_options(options)
            self._cursor.start_replication_expert(
                _start(slot, start_lsn, options).encode(codec or "utf-8"), decode=False, status_interval=60
            )
        except BaseException:
            self._connection.close()
            raise
        self._link = CopyLink(self._connection, on_warning)
        self._confirmed_lsn = 0
        self._wal_end = 0
        self._reply_requested = False
        self._status_seconds = min(status_seconds, timeout / _STATUSES) if timeout else status_seconds
        self._next_status = 0.0
        self._most_silent = max(silent_seconds, timeout) if silent_seconds else 0.0
        self._silent = 0.0  # seconds of waiting since the server's last message

    def __enter__(self) -> Walsender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                # So the server gets the last confirmation and releases the slot before this returns.
                with contextlib.suppress(psycopg2.Error):
                    self._link.end(_END_SECONDS)
        finally:
            # Even if `on_warning` raises an error for a last warning.
            self._connection.close()

    @property
    def wal_end(self) -> int:
        """The server's end of WAL, as last reported."""
        return self._wal_end

    @property
    def confirmed_lsn(self) -> int:
        """The last confirmed LSN; 0 for none yet."""
        return self._confirmed_lsn

    @property
    def reply_requested(self) -> bool:
        """Whether the server requested a reply during the last read.

        A server that shuts down does so repeatedly, until all sent data are confirmed.
        """
        return self._reply_requested

    def read(self, most_bytes: int, most_seconds: float, *, ask: bool = False) -> Received:
        """Returns available messages, up to `most_bytes`; none after `most_seconds` of silence.

        Args:
            most_bytes: limit for the payloads.
            most_seconds: how long to wait for the first message.
            ask: if no message is available, request the server's position, which it otherwise reports only
                occasionally. The reply ends the wait.

        Raises:
            SilentError: if the server does not answer a request in time.
            psycopg2.Error: if the connection is lost, or the server ends the stream.
            DecodeError: for data that are no frame of a walsender.
        """
        deadline = time.monotonic() + most_seconds
        asked = self._reply_requested = False
        first = 0.0  # only data that have already arrived
        while True:
            began, arrivals = time.monotonic(), self._link.arrivals
            frames = self._link.take(most_bytes, first, _FILL_SECONDS)
            if frames is None:
                raise psycopg2.OperationalError("the server ended the stream")
            # Only time spent waiting counts: during slow writes of the caller, the server may have sent much.
            came = len(frames) or self._link.arrivals > arrivals
            self._silent = 0.0 if came else self._silent + time.monotonic() - began
            if self._most_silent and self._silent > self._most_silent:
                raise SilentError(self._silent)
            received = self._unframed(frames) if len(frames) else None
            left = deadline - time.monotonic()
            if received is not None and (len(received.payloads) or asked):
                self.status()
                return received
            if left <= 0:
                self.status(reply=True)
                return Received()
            self.status(force=ask, reply=True)
            asked, ask = asked or ask, False
            first = min(left, self._status_seconds)

    def _unframed(self, frames: pa.Array) -> Received:
        """Extracts the messages from their frames, and replies if the server requests it."""
        received = unframe(frames)
        ends = [pc.max(each).as_py() for each in (received.wal_end, received.keepalives.column("wal_end"))]
        self._wal_end = max(self._wal_end, *(end for end in ends if end is not None))
        if pc.any(received.keepalives.column("reply_requested")).as_py():
            self._reply_requested = True
            self.status(force=True)
        payloads = received.payloads if self._recoder is None else self._recoder.recode(received.payloads)
        return Received(payloads, received.lsn, payloads.buffers()[2].size)

    def confirm(self, lsn: int) -> None:
        """Confirms that everything that committed up to `lsn` is durable.

        The server may discard it. The LSN never decreases.

        Raises:
            psycopg2.Error: if the connection is lost.
        """
        if lsn > self._confirmed_lsn:
            self._confirmed_lsn = lsn
            self.status(force=True)

    def status(self, *, force: bool = False, reply: bool = False) -> None:
        """Sends a status to the server if it is due. Call it often during other waits.

        Args:
            force: send it now.
            reply: request the server's position.

        Raises:
            psycopg2.Error: if the connection is lost.
        """
        now = time.monotonic()
        if force or now >= self._next_status:
            self._next_status = now + self._status_seconds
            lsn = self._confirmed_lsn
            try:
                self._cursor.send_feedback(
                    write_lsn=lsn, flush_lsn=lsn, apply_lsn=lsn, reply=reply, force=True
                )
            except psycopg2.Error:
                # The server has ended the stream, but its error can still be read.
                self._link.why(_END_SECONDS)
                raise
