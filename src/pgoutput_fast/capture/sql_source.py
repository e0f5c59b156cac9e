"""Reads the changes of a slot through SQL, without a replication connection: peek, make durable, advance."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import psycopg2
import psycopg2.errors

from pgoutput_fast._core.copy.slot_rows import CopiedRows
from pgoutput_fast._core.protocol.relations import Malformed
from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.capture.recorder import Limits, Recorder
from pgoutput_fast.capture.watch import Watch
from pgoutput_fast.postgres.copy_stream import CopyLink
from pgoutput_fast.postgres.recoding import Recoder, text_options
from pgoutput_fast.postgres.refusals import converted_here
from pgoutput_fast.postgres.session import codec_of, connect, read_flushed_position
from pgoutput_fast.postgres.slots import Slot, own, read_slot, temporary_copy
from pgoutput_fast.postgres.walsender import Received
from pgoutput_fast.protocol.limits import RECEIVED_BYTES
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["PeekLoop", "SqlSource"]

_log = logging.getLogger("pgoutput_fast.capture")

_READ_SECONDS = 0.2
_FILL_SECONDS = 0.05
# How often to poll for a position that the server has not reached.
_AGAIN_SECONDS = 0.2

# Unlike a walsender, this session does not use the slot between two peeks, so it locks the slot's name.
_LOCK = "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtext('pgoutput_fast slot'), pg_catalog.hashtext(%s))"
# If the network loses this client, the server notices within half a minute, and releases the lock. By default it would
# check only after two hours.
_KEEPALIVES = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4"
_UNLOCK = "SELECT pg_catalog.pg_advisory_unlock_all()"
# This never moves the slot backwards: the function would refuse a lower position, and on 10 it would move back.
_ADVANCE = """
SELECT pg_catalog.pg_replication_slot_advance(s.slot_name, %(lsn)s::pg_catalog.pg_lsn)
FROM pg_catalog.pg_replication_slots s WHERE s.slot_name OPERATOR(pg_catalog.=) %(slot)s
 AND s.confirmed_flush_lsn OPERATOR(pg_catalog.<) %(lsn)s::pg_catalog.pg_lsn
"""
# Consumes the changes of a peek with the same end, and stops at the same record.
_CONSUME = """
SELECT pg_catalog.count(*)
FROM pg_catalog.pg_replication_slots s, LATERAL pg_catalog.pg_logical_slot_get_binary_changes(
    s.slot_name, %(lsn)s::pg_catalog.pg_lsn, NULL, VARIADIC %(options)s::pg_catalog.text[])
WHERE s.slot_name OPERATOR(pg_catalog.=) %(slot)s
  AND s.confirmed_flush_lsn OPERATOR(pg_catalog.<) %(lsn)s::pg_catalog.pg_lsn
"""
_PEEK = """
COPY (SELECT lsn, data FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    %(slot)s, %(lsn)s::pg_catalog.pg_lsn, %(most)s::pg_catalog.int4, VARIADIC %(options)s::pg_catalog.text[])
) TO STDOUT (FORMAT binary)
"""


class SqlSource:
    """A session that peeks at a slot. A context manager.

    Args:
        dsn: connection string of the slot's database.
        slot: its name.
        options: the plugin's options, as from `plugin_options`. Streaming is omitted: a peek returns only complete
            transactions, so each peek makes progress.
        on_warning: as in `CopyLink`: receives what the server sends beside the changes.
        as_copy: whether to peek at copies of the slot, if the server can make them. The server then does not count this
            as reading the slot.

    Raises:
        psycopg2.Error: if the server cannot be reached or refuses; ObjectInUse if another session reads the slot.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        options: Mapping[str, str],
        on_warning: Callable[[str, str], object] | None = None,
        *,
        as_copy: bool = False,
    ) -> None:
        self._dsn = dsn
        self._slot, self._as_copy = slot, as_copy
        self._options = {name: value for name, value in options.items() if name != "streaming"}
        self._on_warning = on_warning
        self._peeks = 0
        self._connection = connect(dsn)
        self._codec: str | None = None  # of the texts, if they come in the encoding of the database
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(_KEEPALIVES)
                self._lock(cursor)
        except BaseException:
            self._connection.close()
            raise

    def _lock(self, cursor: Any) -> None:
        cursor.execute(_LOCK, (self._slot,))
        if not cursor.fetchone()[0]:
            raise psycopg2.errors.ObjectInUse(f"another session reads slot {self._slot} through SQL")
        if not self._as_copy:
            own(cursor, self._slot)

    def __enter__(self) -> SqlSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            # The server needs a moment to end a connection. The next client should find the slot free.
            with contextlib.suppress(psycopg2.Error), self._connection.cursor() as cursor:
                cursor.execute(_UNLOCK)
        self._connection.close()

    def slot(self) -> Slot | None:
        """The slot as described by the server now, None if it does not exist.

        Raises:
            psycopg2.Error: if the connection is lost.
        """
        with self._connection.cursor() as cursor:
            return read_slot(cursor, self._slot)

    def slot_lsn(self) -> int | None:
        """The confirmed LSN of the slot; None if it has none or does not exist."""
        found = self.slot()
        return found.confirmed_flush_lsn if found is not None else None

    def position(self) -> int:
        """The end of the WAL visible to a peek.

        Raises:
            psycopg2.Error: if the connection is lost.
        """
        with self._connection.cursor() as cursor:
            return read_flushed_position(cursor)

    def peek(
        self, upto_lsn: int, most_changes: int | None, keep_waiting: Callable[[], bool] = lambda: True
    ) -> Iterator[Received]:
        """Yields everything committed between the slot's position and another one, in bounded batches as it arrives.

        The server decodes all of it into a temporary file before it sends the first message. If it cannot send a text
        in UTF-8, it sends all texts in the encoding of the database from then on, as to a `Walsender`.

        Args:
            upto_lsn: the server sends nothing that commits after the record at this LSN.
            most_changes: the server stops after the transaction that reaches this number of messages; None for no
                limit.
            keep_waiting: called repeatedly; the peek ends when it returns False.

        Raises:
            psycopg2.Error: if the server refuses, or the connection is lost.
            DecodeError: if the server sends something that is not COPY in binary format.
        """
        try:
            yield from self._peek(upto_lsn, most_changes, keep_waiting)
        except psycopg2.errors.UntranslatableCharacter:
            if not self._use_own_encoding():
                raise
            yield from self._peek(upto_lsn, most_changes, keep_waiting)

    def _use_own_encoding(self) -> bool:
        """Requests texts in the encoding of the database from now on. Returns whether that is new, and can help."""
        if self._codec is not None:
            return False
        self._codec = codec_of(self._connection)
        if self._codec is not None:
            self._options = text_options(self._options)
            _log.warning("%s", converted_here(f"a change of slot {self._slot}"))
        return self._codec is not None

    def _peek(
        self, upto_lsn: int, most_changes: int | None, keep_waiting: Callable[[], bool]
    ) -> Iterator[Received]:
        rows = CopiedRows()
        recoder = Recoder(self._codec) if self._codec is not None else None
        with self._decoding() as connection:
            with connection.cursor() as cursor:
                arguments = {
                    "slot": (self._as_copy and temporary_copy(cursor, self._slot)) or self._slot,
                    "lsn": format_lsn(upto_lsn),
                    "most": most_changes,
                    "options": self._words,
                }
                query = self._statement(cursor, _PEEK, arguments)
            link = CopyLink(connection, self._on_warning)
            complete = False
            try:
                begun = link.begin(query, keep_waiting)
                while begun and keep_waiting():
                    chunk = link.take(RECEIVED_BYTES, _READ_SECONDS, _FILL_SECONDS)
                    if chunk is None:
                        complete = True
                        break
                    if not len(chunk):
                        continue
                    try:
                        payloads, lsns = rows.feed(chunk.buffers()[2])
                    except Malformed as problem:
                        raise _malformed(problem) from None
                    if recoder is not None:
                        payloads = recoder.recode(payloads)
                    if len(payloads):
                        # The recorder itself marks the beginning of the first peek.
                        starts = self._peeks > 0 and rows.rows == len(payloads)
                        yield Received(payloads, lsns, payloads.buffers()[2].size, starts)
            finally:
                if not complete:
                    with contextlib.suppress(psycopg2.Error):
                        connection.cancel()
        if not complete:
            return
        try:
            rows.finish()
        except Malformed as problem:
            raise _malformed(problem) from None
        self._peeks += rows.rows > 0

    @property
    def is_exact(self) -> bool:
        """Whether the server advances a slot to exactly the requested position."""
        return bool(self._connection.server_version >= 110000)

    def advance(self, lsn: int) -> None:
        """Advances the slot to an LSN: the server need not keep earlier commits. It never moves backwards.

        Raises:
            psycopg2.Error: if the server refuses, or the connection is lost.
        """
        arguments = {"slot": self._slot, "lsn": format_lsn(lsn), "options": self._words}
        if self.is_exact:
            with self._connection.cursor() as cursor:
                cursor.execute(_ADVANCE, arguments)
        else:
            try:
                self._consume(arguments)
            except psycopg2.errors.UntranslatableCharacter:
                if not self._use_own_encoding():
                    raise
                self._consume(arguments | {"options": self._words})

    def _consume(self, arguments: Mapping[str, Any]) -> None:
        with self._decoding() as connection, connection.cursor() as cursor:
            cursor.execute(self._statement(cursor, _CONSUME, arguments))

    @property
    def _words(self) -> list[str]:
        """The plugin's options, as its functions take them."""
        return [text for pair in self._options.items() for text in pair]

    def _statement(self, cursor: Any, query: str, arguments: Mapping[str, Any]) -> bytes:
        """Returns a statement for a session that decodes. psycopg2 does not know the encoding of that session."""
        statement: bytes = cursor.mogrify(query, arguments)
        return statement if self._codec is None else statement.decode().encode(self._codec)

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[Any]:
        """Provides a connection for one use of the plugin.

        Each use leaves a callback in the server process until it ends. An old server (10.23, for example) has room for
        ten, and then ends the process: "out of relcache_callback_list slots".
        """
        connection = connect(self._dsn, values=True, own_encoding=self._codec is not None)
        try:
            # With this setting, from 14 on, a session whose client was killed soon releases the slot, even while it
            # decodes.
            with contextlib.suppress(psycopg2.Error), connection.cursor() as cursor:
                cursor.execute("SET client_connection_check_interval = '5s'")
            yield connection
        finally:
            connection.close()


class PeekLoop:
    """Repeats three steps: peeks at the slot, makes the changes durable, and advances the slot past them.

    It repeats them at once if more changes are pending, otherwise when a segment would reach its age limit.

    Args:
        source: the slot's session.
        recorder: takes the changes.
        limits: limits of segments. A peek ends at the row limit of a segment.
        watch: checks the publications before the slot is advanced, and periodically.
        stop: the loop ends once this event is set.
        pause: while this event is set, the loop waits before the next peek.
        until_lsn: the loop ends when everything committed up to this LSN is durable, and the slot is advanced to it;
            None for no end.
        expect_usable: raises an error if the capture cannot continue from the slot, or if another client has advanced
            it beyond the LSN in the second argument.
        save_confirmed: saves the LSN for an idle slot, and returns the LSN up to which the slot may be advanced.
    """

    def __init__(
        self,
        source: SqlSource,
        recorder: Recorder,
        limits: Limits,
        watch: Watch,
        *,
        stop: threading.Event,
        pause: threading.Event,
        until_lsn: int | None,
        expect_usable: Callable[[Slot | None, int | None], object],
        save_confirmed: Callable[[int], int],
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._limits = limits
        self._watch = watch
        self._stop, self._paused = stop, pause
        self._until_lsn = until_lsn
        self._expect_usable = expect_usable
        self._save_confirmed = save_confirmed
        self._pause = limits.seconds if until_lsn is None else min(limits.seconds, _AGAIN_SECONDS)
        self._most_changes: int | None = limits.rows
        # The slot's position, None if it has none.
        self._slot_lsn: int | None = None

    def run(self, start_lsn: int) -> None:
        """Captures until stopped.

        Args:
            start_lsn: the segments have everything committed up to this LSN.

        Raises:
            psycopg2.Error: if the server refuses, or the connection is lost.
            DecodeError: if the server sends something that is not a message.
            Exception: the error of the recorder, or of `expect_usable`.
        """
        self._source.advance(start_lsn)
        self._slot_lsn = self._source.slot_lsn()
        complete_lsn = -1
        while not self._stop.is_set():
            if self._paused.is_set():
                self._stop.wait(_READ_SECONDS)
                continue
            self._expect_usable(self._source.slot(), self._slot_lsn)
            end = self._source.position()
            if self._until_lsn is not None:
                end = min(end, self._until_lsn)
            if end <= complete_lsn:
                if self._watch.is_due:
                    self._watch.check()
                self._stop.wait(self._pause)
                continue
            before = self._recorder.durable_lsn
            is_complete = self._record_changes(end)
            if self._stop.is_set():
                return
            durable = self._make_durable(end, is_complete)
            # A peek with only logical messages outside of transactions may not move the position. The next peek then
            # has no limit, so that it gets past them.
            self._most_changes = self._limits.rows if is_complete or durable > before else None
            self._advance_slot(durable)
            if self._until_lsn is not None and durable >= self._until_lsn:
                return
            if is_complete:
                complete_lsn = durable
                self._stop.wait(self._pause)

    def _record_changes(self, end: int) -> bool:
        """Passes the changes of one peek to the recorder. Returns whether the peek returned all changes up to `end`."""
        most, count = self._most_changes, 0
        for received in self._source.peek(end, most, lambda: not self._stop.is_set()):
            count += len(received.payloads)
            while not self._recorder.offer(received, _READ_SECONDS):
                pass
        return most is None or count < most

    def _make_durable(self, end: int, is_complete: bool) -> int:
        """Makes the changes of a peek durable. Returns the LSN up to which the slot may be advanced."""
        # If another client advanced the slot before the peek, the peek has a gap.
        self._expect_usable(self._source.slot(), self._slot_lsn)
        self._recorder.make_durable()
        durable = self._recorder.durable_lsn
        if is_complete:
            # All earlier commits have been received: advancing to the end lets an idle slot release WAL.
            durable = max(durable, self._save_confirmed(end))
        return durable

    def _advance_slot(self, durable: int) -> None:
        self._watch.check()
        self._source.advance(durable)
        self._watch.set_confirmed(durable)
        # Another client may have advanced the slot since the last check. On 10, the slot may be before the record that
        # contains the position.
        slot = self._source.slot()
        self._expect_usable(slot, max(self._slot_lsn or 0, durable) if self._source.is_exact else None)
        self._slot_lsn = slot.confirmed_flush_lsn if slot is not None else None


def _malformed(problem: Malformed) -> DecodeError:
    return DecodeError(reason_text(problem.reason), seq=problem.frame, byte_offset=problem.offset)
