"""read_recvlogical(): the messages of a file written by pg_recvlogical."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from itertools import islice
from typing import Literal, overload

import pyarrow as pa

from pgoutput_fast.base.errors import DecodeError, reason_text
from pgoutput_fast.messages.ends import CutOffError, end_of_message
from pgoutput_fast.messages.fields import DamagedMessageError, is_streamed_message
from pgoutput_fast.protocol import kinds
from pgoutput_fast.protocol.limits import RECEIVED_BYTES

__all__ = ["RecvlogicalFile", "read_recvlogical"]

_NEWLINE = ord("\n")

# The first bytes of other kinds of files.
_OTHERS = {
    b"PAR1": "a Parquet file: if a capture wrote it, read it with pgoutput_fast.segments",
    b"BEGIN": "text, as the plugin test_decoding writes it",
    b"table ": "text, as the plugin test_decoding writes it",
    b"{": "JSON, as the plugin wal2json writes it",
    b"\\x": "text made of hex digits",
    b"\x1f\x8b": "a file that gzip compressed: decompress it first",
    b"\x28\xb5\x2f\xfd": "a file that zstd compressed: decompress it first",
}
_HOW = (
    "pg_recvlogical writes a file of pgoutput with --start, -o proto_version=... and -o publication_names=..."
)


class RecvlogicalFile:
    r"""The messages of a file written by pg_recvlogical, as bytes, in stream order.

    Pass it as payloads to `decode` and `tag`, iterate over it repeatedly, or index and slice it. Each of these reads
    the file from the beginning, a few MiB at a time. `len` reads the whole file once.

    A damaged or truncated message raises a DecodeError when it is read: see `read_recvlogical`.

    >>> import pgoutput_fast as pgo, tempfile, pathlib
    >>> from pgoutput_fast.encode import encode_begin, encode_commit
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "changes")
    ...     _ = path.write_bytes(encode_begin(100, 0, 7) + b"\n" + encode_commit(100, 108, 0) + b"\n")
    ...     payloads = pgo.read_recvlogical(path)
    ...     decoder = pgo.Decoder()
    ...     print([decoded.transactions.num_rows for decoded in decoder.stream(payloads.batches())])
    ...     print(pgo.describe(payloads[0]))
    [2]
    Begin, 21 bytes
      final_lsn: 0/64 (100)
      commit_timestamp: 2000-01-01T00:00:00Z
      xid: 7
    """

    def __init__(self, path: str, truncated: str, in_stream: bool) -> None:
        self.path = path
        self._truncated = truncated
        self._in_stream = in_stream
        self._counted: tuple[tuple[int, int], int] | None = None

    def __repr__(self) -> str:
        return f"<RecvlogicalFile {self.path!r}>"

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks():
            yield from block

    def __len__(self) -> int:
        status = os.stat(self.path)
        key = (status.st_size, status.st_mtime_ns)
        if self._counted is None or self._counted[0] != key:
            self._counted = key, sum(map(len, self._blocks()))
        return self._counted[1]

    @overload
    def __getitem__(self, key: int) -> bytes: ...

    @overload
    def __getitem__(self, key: slice) -> list[bytes]: ...

    def __getitem__(self, key: int | slice) -> bytes | list[bytes]:
        if isinstance(key, slice):
            from_front = (key.start or 0) >= 0 and key.stop is not None and key.stop >= 0
            if from_front and (key.step is None or key.step > 0):
                return list(islice(self, key.start, key.stop, key.step))
            return list(self)[key]
        index = operator.index(key)
        if index < 0:
            index += len(self)
        found = next(islice(self, index, None), None) if index >= 0 else None
        if found is None:
            raise IndexError(f"{self.path} has no message {key}")
        return found

    def batches(self) -> Iterator[pa.Array]:
        """The messages as Arrow arrays of a few MiB, for `Decoder.stream`: binary, without nulls.

        Raises:
            DecodeError: as `read_recvlogical`.
        """
        for block in self._blocks():
            yield pa.array(block, pa.binary())
            del block

    def check_beginning(self) -> None:
        """Reads the first messages, or all of them if the file does not end with a newline: its last message is
        truncated.

        Raises:
            DecodeError: if the file is of another kind, and for a truncated message, unless it is to be dropped.
        """
        with open(self.path, "rb") as file:
            if not file.read(1):
                raise DecodeError(f"{self.path!r} is empty: pg_recvlogical has written no message to it yet")
            file.seek(-1, os.SEEK_END)
            whole = file.read(1) == b"\n"
        blocks = self._blocks()
        next(blocks, None)
        if not whole and self._truncated == "error":
            for _ in blocks:
                pass

    def _blocks(self) -> Iterator[list[bytes]]:
        """The messages, in one list per read of the file."""
        split = _Splitter(self.path, self._in_stream)
        with open(self.path, "rb") as file:
            while True:
                # For a message longer than a read, reads grow: otherwise it would be parsed again after every small
                # read.
                more = file.read(max(RECEIVED_BYTES, split.waiting))
                if not more:
                    break
                block = split.add(more)
                if block:
                    yield block
                if split.problem is not None:
                    raise split.problem
        if split.waiting and self._truncated == "error":
            raise split.cut_off()


class _Splitter:
    """Splits bytes into messages.

    Attributes:
        problem: the error after the messages that `add` returned, or None.
    """

    def __init__(self, path: str, in_stream: bool) -> None:
        self._path = path
        self._in_stream = in_stream
        self._data = b""
        self._offset = 0  # offset of `_data` in the file
        self._seq = 0
        self.problem: DecodeError | None = None

    @property
    def waiting(self) -> int:
        """Number of bytes of an incomplete message."""
        return len(self._data)

    def add(self, more: bytes) -> list[bytes]:
        """The messages that end within these bytes."""
        data = self._data + more if self._data else more
        if self._offset == 0 and self._seq == 0:
            self.problem = self._something_else(data)
        block: list[bytes] = []
        at = 0
        while at < len(data) and self.problem is None:
            kind = data[at]
            if self._in_stream and kind == kinds.MSG_MESSAGE and not is_streamed_message(data, at):
                # The connection was lost within a stream block, and a new one began.
                self._in_stream = False
            try:
                end = end_of_message(data, at, self._in_stream, _NEWLINE)
            except CutOffError:
                break
            except DamagedMessageError as problem:
                text = f"{reason_text(problem.reason)}; expected: {problem.expected}"
                self.problem = self._damaged(text, kind, problem.at)
                break
            if data[end] != _NEWLINE:
                self.problem = self._damaged("a newline was expected after the message", kind, end)
                break
            block.append(data[at:end])
            self._seq += 1
            if kind in kinds.BOUNDARIES:
                self._in_stream = kind == kinds.MSG_STREAM_START
            at = end + 1
        self._data = data[at:]
        self._offset += at
        return block

    def cut_off(self) -> DecodeError:
        """The error for a truncated last message."""
        if self._seq == 0:
            which = f"first message, if this is one of pgoutput. {_HOW}. If it did, it"
        else:
            which = "last message, which begins at this byte: pg_recvlogical"
        reason = (
            f"{self._path!r} ends within its {which} was stopped while it wrote, or still writes. "
            "Pass truncated='drop' to read the messages before it"
        )
        kind = kinds.MESSAGE_KINDS.get(self._data[0])
        return DecodeError(reason, seq=self._seq, byte_offset=self._offset, kind=kind)

    def _damaged(self, text: str, kind: int, at: int) -> DecodeError:
        if self._seq == 0:
            text = f"{self._path!r} does not begin with a message of pgoutput and a newline ({text}). {_HOW}"
        else:
            text = f"{self._path!r} is damaged: {text}"
        name = kinds.MESSAGE_KINDS.get(kind)
        return DecodeError(text, seq=self._seq, byte_offset=self._offset + at, kind=name)

    def _something_else(self, data: bytes) -> DecodeError | None:
        found = next((text for beginning, text in _OTHERS.items() if data.startswith(beginning)), None)
        return None if found is None else DecodeError(f"{self._path!r} is {found}. {_HOW}", byte_offset=0)


def read_recvlogical(
    path: str | os.PathLike[str],
    *,
    truncated: Literal["error", "drop"] = "error",
    in_stream: bool = False,
) -> RecvlogicalFile:
    r"""The messages of a file written by `pg_recvlogical --start -f file` with the plugin pgoutput.

    pg_recvlogical writes a newline after every message. Values may contain newlines, so the fields of the messages are
    parsed to find their ends. The file does not have the LSNs of the messages.

    Args:
        path: the file, which must not be compressed.
        truncated: what to do if the file ends within its last message, as after pg_recvlogical was killed: `"error"`
            raises, `"drop"` drops this message.
        in_stream: whether the file begins inside a stream block, as after a SIGHUP to pg_recvlogical, which reopens its
            file.

    Raises:
        DecodeError: if the file is empty or of another kind, if a message is damaged, or if the last one is truncated.
            `byte_offset` is the offset in the file; for a truncated message, of its beginning. Errors at the beginning,
            and a missing newline at the end, are raised at once, others when the message is read.
        OSError: if the file cannot be read.

    If pg_recvlogical reconnected, the server sent unconfirmed transactions again. The file does not mark where.

    >>> import pgoutput_fast as pgo, tempfile, pathlib
    >>> from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
    >>> notes, writer = RelationSpec(16401, "public", "notes", (ColumnSpec("id", 23), ColumnSpec("t", 25))), Writer()
    >>> wal = writer.begin(7, 100, 0) + writer.change(notes, "insert", new=["1", "two\nlines"])
    >>> wal += writer.commit(100, 108, 0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "changes")
    ...     _ = path.write_bytes(b"".join(message + b"\n" for message in wal))
    ...     payloads = pgo.read_recvlogical(path)
    ...     print(len(payloads), pgo.decode(payloads).table("public.notes").column("t").to_pylist())
    4 ['two\nlines']
    """
    if truncated not in ("error", "drop"):
        raise ValueError(f"truncated must be 'error' or 'drop', not {truncated!r}")
    file = RecvlogicalFile(os.fspath(path), truncated, in_stream)
    file.check_beginning()
    return file
