"""Received messages -> tagged rows -> durable segments, on a separate thread. Reports how far they are durable."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.errors import DecodeError
from pgoutput_fast.capture.errors import START_OVER, CaptureError, UnstorableError
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.decoding.inputs import as_binary_arrays
from pgoutput_fast.decoding.state import StreamState, native_decoder, state_of
from pgoutput_fast.postgres.walsender import Received
from pgoutput_fast.protocol.kinds import BOUNDARIES, MSG_MESSAGE, OPENINGS, SENT_IN_FULL, SESSION_MARK
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.segment import Source
from pgoutput_fast.segments.write import MOST_BYTES

__all__ = ["Limits", "Recorder", "RecorderProgress"]

# Batches that wait for the thread, of some MB each. At this number, nothing more is read from the server.
_MOST_WAITING = 4


@dataclass(frozen=True)
class Limits:
    """When a segment is cut: as soon as one of these limits is reached.

    Attributes:
        rows: number of tagged rows.
        nbytes: bytes of payloads.
        seconds: seconds since the segment's first message arrived.
    """

    rows: int = 1_000_000
    nbytes: int = 64 << 20
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.nbytes < 1 or not self.seconds > 0:
            raise ValueError("the limits of a segment must be positive")


@dataclass(frozen=True)
class RecorderProgress:
    """The progress of a recorder.

    Attributes:
        messages, nbytes: messages received, and the bytes of their payloads.
        segments: segments written.
        stored: messages in these segments.
        durable_lsn: everything committed up to this LSN is in segments.
        open_transactions: transactions, including streamed and prepared ones, that have not ended at the end of the
            newest segment.
        committed_at: when the last transaction in segments ended, in microseconds since 1970 by the server's clock.
    """

    messages: int = 0
    nbytes: int = 0
    segments: int = 0
    stored: int = 0
    durable_lsn: int = 0
    open_transactions: int = 0
    committed_at: int | None = None


class Recorder:
    """Writes segments. A context manager: at its end everything received is durable, unless there was an error.

    Args:
        directory: the directory of the segments, with no other writer.
        source: the source of the messages.
        state: the stream's state after the newest segment, None if there is no segment.
        end_lsn: the segments have everything committed up to this LSN.
        limits: when a segment is cut.
    """

    def __init__(
        self,
        directory: SegmentDirectory,
        source: Source,
        state: StreamState | None,
        end_lsn: int,
        limits: Limits,
    ) -> None:
        self._directory = directory
        self._source = source
        self._stream = _Stream(state, directory.outgrown)
        self._limits = limits
        self._waiting: queue.Queue[Received | None] = queue.Queue(_MOST_WAITING)
        self._error: BaseException | None = None
        self._tagged: list[pa.RecordBatch] = []
        self._rows = self._tagged_bytes = self._nbytes = self._messages = 0
        self._begun = 0.0
        self._inside = False
        self._end_lsn = end_lsn
        self._given = self._given_bytes = self._stored = self._segments = 0
        self._open = _open_transactions(self._stream.state)
        self._committed_at: int | None = None
        self._lock = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pgoutput_fast segments", daemon=True)

    def __enter__(self) -> Recorder:
        self._directory.claim()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Received messages are kept, even if the connection was lost.
        self._end()
        if kind is None:
            self.check()

    def _end(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                meanwhile()
        while self._thread.is_alive():
            self._thread.join(0.1)
            meanwhile()

    def finish(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Makes everything received durable. After this call the recorder accepts nothing more.

        Args:
            meanwhile: called repeatedly while this waits.

        Raises:
            Exception: the error of the thread.
        """
        self._end(meanwhile)
        self.check()

    @property
    def durable_lsn(self) -> int:
        """Everything committed up to this LSN is in segments that survive a crash."""
        with self._lock:
            return self._end_lsn

    @property
    def progress(self) -> RecorderProgress:
        """How much was received, and how much of it is durable."""
        with self._lock:
            return RecorderProgress(
                self._given, self._given_bytes, self._segments, self._stored, self._end_lsn, self._open,
                self._committed_at,
            )  # fmt: skip

    @property
    def idle(self) -> bool:
        """Whether everything received is durable, and no transaction is partly sent."""
        with self._lock:
            return self._stored == self._given and not self._inside

    def check(self) -> None:
        """Raises the error of the thread, if it failed."""
        if self._error is not None:
            raise self._error

    def offer(self, received: Received, seconds: float) -> bool:
        """Takes a batch. Returns False, without taking it, if it would wait longer than `seconds`.

        Raises:
            Exception: the error of the thread.
        """
        self.check()
        try:
            self._waiting.put(received, timeout=seconds)
        except queue.Full:
            return False
        with self._lock:
            self._given += len(received.payloads)
            self._given_bytes += received.nbytes
        return True

    def flush(self) -> None:
        """Makes the received messages durable before the limits require it. Does not wait."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(Received())

    def make_durable(self) -> None:
        """Makes everything received durable, and waits for it.

        Raises:
            Exception: the error of the thread.
        """
        while not self.offer(Received(), 1.0):
            pass
        with self._lock:
            self._lock.wait_for(lambda: self._error is not None or self._stored == self._given)
        self.check()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                left = self._begun + self._limits.seconds - time.monotonic() if self._tagged else None
                try:
                    received = self._waiting.get(timeout=None if left is None else max(left, 0))
                except queue.Empty:
                    self._cut()
                    continue
                if received is None:
                    self._cut()
                    return
                if len(received.payloads):
                    self._take(received)
                else:
                    self._cut()
        except (DecodeError, UnstorableError) as problem:
            self._error = problem
            # The messages before the error are valid.
            with contextlib.suppress(OSError, CaptureError):
                self._cut()
        except BaseException as problem:
            self._error = problem
        finally:
            # Wakes waiting threads.
            with self._lock:
                self._lock.notify_all()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()

    def _take(self, received: Received) -> None:
        if received.starts_session:
            self._stream.start_session(self._directory.outgrown, self._tagged)
        self._take_parts(received.payloads, received.lsns)

    def _take_parts(self, payloads: pa.Array, lsns: pa.Array) -> None:
        """Takes messages in as few parts as fit beside the waiting rows.

        Raises:
            UnstorableError: for a message whose rows are too large for any segment.
        """
        try:
            tagged = self._stream.tag(payloads, lsns, MOST_BYTES - self._tagged_bytes)
        except DecodeError:
            raise
        except _FullError:
            # The state is still that of the waiting rows. A segment must have exactly this state.
            self._cut()
            self._take_parts(payloads, lsns)
            return
        except (ValueError, MemoryError, OverflowError, pa.ArrowException) as problem:
            if len(payloads) > 1:
                half = len(payloads) // 2
                self._take_parts(payloads[:half], lsns[:half])
                self._take_parts(payloads[half:], lsns[half:])
                return
            if isinstance(problem, MemoryError):
                raise  # on a machine with more memory the capture can continue
            error = DecodeError(
                f"a message of {len(payloads[0].as_buffer()):,} bytes does not fit into a segment ({problem})",
                seq=self._stream.next_seq,
                lsn=lsns[0].as_py() or None,
            )
            raise UnstorableError(
                f"{error}. The messages before it are in segments. Another try does not help, because the slot would "
                f"send this message again. {START_OVER}"
            ) from problem
        if tagged is None:
            self._pass(len(payloads))
            return
        if not self._tagged:
            self._begun = time.monotonic()
        self._tagged.append(tagged)
        self._rows += tagged.num_rows
        self._tagged_bytes += tagged.nbytes
        self._nbytes += pc.sum(pc.binary_length(payloads)).as_py()
        self._messages += len(payloads)
        if (
            self._rows >= self._limits.rows
            or self._nbytes >= self._limits.nbytes
            or time.monotonic() >= self._begun + self._limits.seconds
        ):
            self._cut()

    def _pass(self, messages: int) -> None:
        """Counts messages that the segments, or the rows of the next segment, already have."""
        if self._tagged:
            self._messages += messages
            return
        with self._lock:
            self._stored += messages
            self._lock.notify_all()

    def _cut(self) -> None:
        """Writes the waiting rows as a segment."""
        if not self._tagged:
            return
        rows = pa.Table.from_batches(self._tagged)
        end, inside, at = _ended(rows, self._end_lsn, self._inside)
        state = self._stream.state
        self._directory.write(rows, state, self._source, end)
        with self._lock:
            self._stored += self._messages
            self._end_lsn, self._inside = end, inside
            self._segments += 1
            self._open = _open_transactions(state)
            self._committed_at = at or self._committed_at
            self._lock.notify_all()
        self._tagged, self._rows, self._tagged_bytes, self._nbytes, self._messages = [], 0, 0, 0, 0
        self._directory.apply_retention()
        # Arrow's allocator retains memory freed on other threads: here, everything received.
        del rows
        pa.default_memory_pool().release_unused()


class _RepeatedError(Exception):
    """Some messages were received before. `new` has the batch indices of the others."""

    def __init__(self, new: pa.Array) -> None:
        self.new = new


class _FullError(Exception):
    """These rows do not fit into the next segment beside the waiting rows."""


class _Stream:
    """The state machine of a recorder, which is kept because a new one would have to rebuild its state.

    Args:
        state: the state after the newest segment, None if there is no segment.
        forget: see `start_session`.
    """

    def __init__(self, state: StreamState | None, forget: bool) -> None:
        self._native = native_decoder(Options(), state)
        self.start_session(forget, ())

    @property
    def state(self) -> StreamState:
        """The state after the tagged messages."""
        return state_of(self._native)

    def start_session(self, forget: bool, waiting: Sequence[pa.RecordBatch]) -> None:
        """Adds the mark of a new session. Open transactions become void, because the server sends them again.

        Args:
            forget: forget the contents of Relation messages, which would otherwise grow without limit. A new session
                sends them again before it sends a change.
            waiting: rows that are in no segment yet. Their relation versions are kept.
        """
        if forget:
            found = [batch.column("version").unique().drop_null().to_pylist() for batch in waiting]
            state = state_of(self._native).forgetting(version for versions in found for version in versions)
            self._native = native_decoder(Options(), state)
        self._native.start_session()

    @property
    def next_seq(self) -> int:
        """The ordinal of the next message."""
        return self._native.next_seq

    def tag(self, payloads: pa.Array, lsns: pa.Array, most_bytes: int) -> pa.RecordBatch | None:
        """Returns the rows of the new messages; None, with the state unchanged, if all were received before.

        A new session repeats logical messages outside of transactions. The repeated messages must get no ordinals: gaps
        at the ends of a segment would look like a removed segment.

        Raises:
            DecodeError: if a message is malformed.
            ValueError: if the rows are too large for any segment.
            _FullError: if the rows have more than `most_bytes` bytes. The state is unchanged.
        """
        try:
            with self._native.tentative():
                tagged = self._tag(payloads, lsns, most_bytes)
                seqs = tagged.column("seq").to_numpy()[tagged.column("kind").to_numpy() != SESSION_MARK]
                if len(seqs) and 1 + np.count_nonzero(np.diff(seqs)) == len(payloads):
                    return tagged
                raise _RepeatedError(pa.array(np.unique(seqs) - (self._native.next_seq - len(payloads))))
        except _RepeatedError as repeated:
            new = repeated.new
        if not len(new):
            return None
        with self._native.tentative():
            return self._tag(payloads.take(new), lsns.take(new), most_bytes)

    def _tag(self, payloads: pa.Array, lsns: pa.Array, most_bytes: int) -> pa.RecordBatch:
        tagged = self._native.tag(as_binary_arrays(payloads), lsns, None)[0]
        if tagged.nbytes > MOST_BYTES:
            raise ValueError(f"its {tagged.num_rows:,} tagged rows have {tagged.nbytes:,} bytes")
        if tagged.nbytes > most_bytes:
            raise _FullError
        return tagged


def _open_transactions(state: StreamState) -> int:
    values = state.position
    if values is None:
        return 0
    streamed = {each["txn"] for each in values["streamed"]}
    current = values["current"]
    return len(streamed | ({current["txn"]} if current else set())) + len(values["prepared"])


def _ended(rows: pa.Table, end_lsn: int, inside: bool) -> tuple[int, bool, int | None]:
    """Returns (end LSN, whether the rows end inside a transaction, when the last one ended).

    Everything committed up to the end LSN is in these rows or in earlier ones.
    """
    kinds = rows.column("kind").to_numpy()
    boundaries = np.flatnonzero(np.isin(kinds, BOUNDARIES))
    opens = np.concatenate([[inside], np.isin(kinds[boundaries], OPENINGS)])
    ends = np.flatnonzero(np.isin(kinds, SENT_IN_FULL))
    at: int | None = None
    if len(ends):
        (last,) = rows.slice(ends[-1], 1).combine_chunks().to_batches()
        transactions = decode_tagged(last, Catalog()).transactions
        end_lsn = max(end_lsn, transactions.column("end_lsn")[0].as_py())
        at = transactions.column("timestamp").cast(pa.int64())[0].as_py()
    # The server sends a logical message outside of transactions when it reads the message's record. The message's LSN
    # is the begin of this record. Commits not yet sent have their records after it, so a stream that begins at this LSN
    # misses none of them. It repeats this message, which the recorder skips. This lets the slot advance if the server
    # sends nothing else.
    messages = np.flatnonzero((kinds == MSG_MESSAGE) & rows.column("txn").is_null().to_numpy())
    between = messages[~opens[np.searchsorted(boundaries, messages)]]
    if len(between):
        end_lsn = max(end_lsn, rows.column("lsn")[int(between[-1])].as_py() or 0)
    return end_lsn, bool(opens[-1]), at
