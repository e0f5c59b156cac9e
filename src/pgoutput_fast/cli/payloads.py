"""Messages in files: raw ones, those of pg_recvlogical, hex digits, and columns of Parquet and Arrow files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.decoding.inputs import as_lsns
from pgoutput_fast.messages.ends import CutOffError, end_of_message
from pgoutput_fast.messages.fields import DamagedMessageError
from pgoutput_fast.messages.recvlogical import RecvlogicalFile
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.limits import RECEIVED_BYTES
from pgoutput_fast.protocol.lsn import parse_lsn

__all__ = [
    "ArrowFile",
    "Batch",
    "DamagedInputError",
    "HexText",
    "InputError",
    "Payloads",
    "RawFile",
    "Recvlogical",
    "WithoutEnd",
    "hex_of_line",
]

_NAMES = ("payload", "data")
_MOST_ROWS = 1 << 14
# Maximum number of bytes of a damaged end that are kept for display.
_SHOWN_BYTES = 1 << 16
_CUT_OFF = "the input ends within this message"
_ABORT_SHORT, _ABORT_LONG = 9, 25
# A line of psql, or digits alone; an LSN and an xid may precede the bytes.
_HEX = re.compile(r"(?:\s*(?P<lsn>[0-9A-Fa-f]+/[0-9A-Fa-f]+)\b)?.*?\\x(?P<digits>[0-9A-Fa-f]*)[\s|\"']*")
_DIGITS = re.compile(r"\s*(?:0x)?(?P<digits>(?:[0-9A-Fa-f]{2}\s*)+)")
_FRAME = re.compile(r"[\s|+-]*|\s*\(\d+ rows?\)\s*")


class InputError(ValueError):
    """The input is not of the expected kind; the text says what it is."""


class DamagedInputError(InputError):
    """The input cannot be read any further.

    Attributes:
        rest: the bytes of the damaged message, from its tag byte on, as far as they are useful.
        cut_off: whether the input ends within this message.
    """

    def __init__(self, text: str, rest: bytes = b"", *, cut_off: bool = False) -> None:
        super().__init__(text)
        self.rest = rest
        self.cut_off = cut_off


@dataclass(frozen=True)
class Batch:
    """Messages in stream order.

    Attributes:
        payloads: their bytes.
        lsns: the LSNs of their frames, int64 with 0 for unknown; None if all are unknown.
        starts_session: whether the server starts a new session with them.
        done: how much of the input is read after them, in the unit of `Payloads.size`.
    """

    payloads: pa.Array
    lsns: pa.Array | None = None
    starts_session: bool = False
    done: int = 0


class Payloads(Protocol):
    """An input with messages as written by the plugin."""

    @property
    def name(self) -> str:
        """Its name in the texts of a command."""
        ...

    @property
    def size(self) -> int | None:
        """Its size, for a progress bar; None if unknown."""
        ...

    def batches(self) -> Iterator[Batch]:
        """The messages from the beginning, a few MiB at a time."""
        ...


@dataclass(frozen=True)
class Recvlogical:
    """A file of `pg_recvlogical -f`: messages, each followed by a newline."""

    path: str
    name: str

    @property
    def size(self) -> int:
        """In bytes."""
        return os.path.getsize(self.path)

    def batches(self) -> Iterator[Batch]:
        """The messages.

        Raises:
            DamagedInputError: for a damaged or truncated message, after those before it.
        """
        done = 0
        try:
            for payloads in RecvlogicalFile(self.path, "error", False).batches():
                done += len(payloads) + (pc.sum(pc.binary_length(payloads)).as_py() or 0)
                yield Batch(payloads, done=done)
        except DecodeError as problem:
            with open(self.path, "rb") as file:
                file.seek(done)
                rest = file.read(_SHOWN_BYTES)
            text = str(problem).replace(repr(self.path), self.name)
            text, cut_off, _ = text.partition(". Pass truncated='drop'")
            raise DamagedInputError(text, rest, cut_off=bool(cut_off)) from None


@dataclass(frozen=True)
class RawFile:
    """A file of consecutive messages, without separators."""

    path: str
    name: str

    @property
    def size(self) -> int:
        """In bytes."""
        return os.path.getsize(self.path)

    def batches(self) -> Iterator[Batch]:
        """The messages.

        Raises:
            DamagedInputError: for a damaged or truncated message, after those before it.
        """
        data, done, seq, in_stream = b"", 0, 0, False
        with open(self.path, "rb") as file:
            while True:
                more = file.read(max(RECEIVED_BYTES, len(data)))
                data += more
                found: list[bytes] = []
                at, problem = 0, None
                while at < len(data):
                    try:
                        end = _end(data, at, in_stream, is_last=not more)
                    except CutOffError:
                        problem = None if more else _CUT_OFF
                        break
                    except DamagedMessageError as damage:
                        problem = f"{reason_text(damage.reason)}; expected: {damage.expected}"
                        break
                    if data[at] in kinds.BOUNDARIES:
                        in_stream = data[at] == kinds.MSG_STREAM_START
                    found.append(data[at:end])
                    at = end
                data = data[at:]
                done, seq = done + at, seq + len(found)
                if found:
                    yield Batch(pa.array(found, pa.binary()), done=done)
                if problem is not None:
                    text = f"{self.name}: message {seq}, which begins at byte {done}: {problem}"
                    raise DamagedInputError(text, data[:_SHOWN_BYTES], cut_off=problem == _CUT_OFF)
                if not more:
                    return


def _end(data: bytes, at: int, in_stream: bool, *, is_last: bool) -> int:
    """The offset after the message at `at`, without a separator that shows its end."""
    if data[at] != kinds.MSG_STREAM_ABORT:
        return end_of_message(data + b"\0" if is_last else data, at, in_stream, 0)
    # No message begins with a zero byte, and the LSN of the longer form does.
    is_long = data[at + _ABORT_SHORT : at + _ABORT_SHORT + 1] == b"\0"
    end = at + (_ABORT_LONG if is_long else _ABORT_SHORT)
    if end > len(data) or (end == len(data) and not is_last):
        raise CutOffError
    return end


@dataclass(frozen=True)
class HexText:
    """Text with one message in hex digits per line, such as rows printed by psql.

    Args:
        lines: the lines.
        name: its name in error texts.
        size: in characters, if known.
    """

    lines: Iterable[str]
    name: str
    size: int | None = None

    def batches(self) -> Iterator[Batch]:
        """The messages.

        Raises:
            InputError: for a line without hex digits.
        """
        done, lines = 0, enumerate(self.lines, 1)
        while some := list(islice(lines, _MOST_ROWS)):
            payloads, lsns = [], []
            for number, line in some:
                done += len(line)
                found = hex_of_line(line)
                if found is not None:
                    payloads.append(found[0])
                    lsns.append(found[1])
                elif number > 1 and not _FRAME.fullmatch(line):
                    raise InputError(
                        f"{self.name}: line {number} has no message in hex digits such as \\x42..."
                    )
            yield Batch(pa.array(payloads, pa.binary()), pa.array(lsns, pa.int64()), done=done)


def hex_of_line(line: str) -> tuple[bytes, int] | None:
    r"""(the message, its LSN or 0) in a line of text; None if it has none.

    >>> hex_of_line(" 0/1B0D988 | 725 | \\x4300"), hex_of_line("42 00"), hex_of_line("data")
    ((b'C\x00', 28367240), (b'B\x00', 0), None)
    """
    found = _HEX.fullmatch(line) or _DIGITS.fullmatch(line)
    if found is None or not found["digits"]:
        return None
    lsn = found.groupdict().get("lsn")
    try:
        return bytes.fromhex(found["digits"]), parse_lsn(lsn) if lsn else 0
    except ValueError:
        return None


@dataclass(frozen=True)
class ArrowFile:
    """A Parquet file, or a file of Arrow, with a binary column.

    Args:
        path: the file.
        name: its name in error texts.
        format: `parquet`, `arrow` or `arrow stream`.
    """

    path: str
    name: str
    format: str

    @property
    def size(self) -> int | None:
        """In rows."""
        if self.format != "parquet":
            return None
        import pyarrow.parquet as pq

        return int(pq.read_metadata(self.path).num_rows)

    def batches(self) -> Iterator[Batch]:
        """The messages.

        Raises:
            InputError: if the column of messages is missing or ambiguous, for a null, and for a damaged file.
        """
        done = 0
        try:
            for batch in self._batches():
                payloads = batch.column(_payload_column(batch.schema, self.name))
                if payloads.null_count:
                    row = done + payloads.is_null().index(True).as_py()
                    raise InputError(f"{self.name}: row {row} has no message: its value is null")
                lsns = batch.column("lsn") if "lsn" in batch.schema.names else None
                done += len(payloads)
                yield Batch(payloads.cast(pa.large_binary()), as_lsns(lsns, len(payloads)), done=done)
        except pa.ArrowException as problem:
            raise InputError(f"{self.name} is damaged or cut off: {problem}") from None

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self.format == "parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(self.path) as file:
                names = [_payload_column(file.schema_arrow, self.name)]
                names += ["lsn"] if "lsn" in file.schema_arrow.names else []
                yield from file.iter_batches(_MOST_ROWS, columns=names)
            return
        with pa.OSFile(self.path, "rb") as source:
            if self.format == "arrow":
                reader: Any = pa.ipc.open_file(source)
                yield from (reader.get_batch(k) for k in range(reader.num_record_batches))
            else:
                yield from pa.ipc.open_stream(source)


def _payload_column(schema: pa.Schema, name: str) -> str:
    """The column with the messages: by its name, or the only binary one."""
    binary = [
        each.name for each in schema if pa.types.is_binary(each.type) or pa.types.is_large_binary(each.type)
    ]
    named = [each for each in _NAMES if each in binary]
    if named or len(binary) == 1:
        return (named or binary)[0]
    what = (
        f"{len(binary)} binary columns and none has the name payload or data"
        if binary
        else "no binary column"
    )
    raise InputError(f"{name} has {what}: messages are expected in a binary column")


@dataclass(frozen=True)
class WithoutEnd:
    """An input without its last message, if that is truncated."""

    source: Payloads

    @property
    def name(self) -> str:
        """That of the input."""
        return self.source.name

    @property
    def size(self) -> int | None:
        """That of the input."""
        return self.source.size

    def batches(self) -> Iterator[Batch]:
        """The messages.

        Raises:
            DamagedInputError: for a message that is damaged.
        """
        try:
            yield from self.source.batches()
        except DamagedInputError as problem:
            if not problem.cut_off:
                raise
            print(f"left out: the last message of {self.name}, which is cut off", file=sys.stderr)
