"""Spill files: changes of the reorder buffer that wait for their commit on disk.

A file has rows of one transaction. It is written once, read batch by batch, and removed after the last reference to it.
It is compressed if its payloads compress well: then compression is faster than the disk. Its name is random, so that
decoders can share a directory. A file is kept as long as a decoder or a state in memory refers to it, or the state
saved last names it.

A saved state may have been edited, and the files that it names are eventually removed. So a file ends with a mark and a
random token, which the state also contains. A file with another end is never read or removed. Only the owner may read a
spill file, because it contains the token and the changes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from pgoutput_fast._core.files.crc32 import crc32
from pgoutput_fast.base.errors import SpillError
from pgoutput_fast.base.private_directory import PrivateDirectory
from pgoutput_fast.protocol.limits import PIECE_BYTES
from pgoutput_fast.schema.foreign import checked_table
from pgoutput_fast.schema.tables import TAGGED_SCHEMA
from pgoutput_fast.storage.fsync import fsync, make_directory

__all__ = ["SpillFile", "Spiller"]

NAME = "pgoutput-fast-{chance}-{number}.arrow"
_NAME = re.compile(r"pgoutput-fast-[0-9a-f]{16}-(0|[1-9][0-9]{0,18})\.arrow")
# A spill file is an Arrow file, this mark and the token.
_MARK = b"pgoutput_fast spill 1\n"
_TOKEN = re.compile(r"[0-9a-f]{32}")
_END = len(_MARK) + 32
_CHUNK = 1 << 20
_SAMPLE = 1 << 16


class _Removal:
    """Whether to remove a file after its SpillFile is collected. It outlives the SpillFile."""

    __slots__ = ("keep", "process", "token")

    def __init__(self, keep: bool, token: str) -> None:
        self.keep = keep
        self.token = token
        self.process = os.getpid()  # after a fork, the file still belongs to the parent


def _remove(path: str, removal: _Removal) -> None:
    """Removes a file unless another file has taken its name."""
    if not removal.keep and removal.process == os.getpid():
        with contextlib.suppress(OSError):
            if _end(path)[1] == _MARK + removal.token.encode():
                os.unlink(path)


def _end(path: str) -> tuple[int, bytes]:
    """(size of a file in bytes, its last bytes); (-1, b"") if it is not a regular file, such as a symbolic link.

    Raises:
        OSError: if it cannot be opened or read.
    """
    # Opening anything but a regular file may block or have side effects.
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return -1, b""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        return size, os.pread(descriptor, _END, max(size - _END, 0))
    finally:
        os.close(descriptor)


class SpillFile:
    """Record batches with TAGGED_SCHEMA of one transaction, in an Arrow IPC file.

    Attributes:
        path: path of the file.
        txn: key of the transaction.
        rows, batches, nbytes: number of rows and record batches, and their size in memory.
        size, checksum: size of the file in bytes, and its CRC-32.
        token: 32 hexadecimal digits at the end of the file.
        durable: whether the directory outlives the decoder, so that a saved state may refer to the file.
    """

    __slots__ = (
        "__weakref__", "_checked", "_directory", "_reader", "_removal", "_synced", "batches", "checksum", "nbytes",
        "path", "rows", "size", "token", "txn",
    )  # fmt: skip

    def __init__(
        self, path: str, *, txn: int, rows: int, batches: int, nbytes: int, size: int, checksum: int,
        token: str, keep: bool, directory: PrivateDirectory | None = None,
    ) -> None:  # fmt: skip
        self.path, self.txn, self.rows, self.batches, self.nbytes = path, txn, rows, batches, nbytes
        self.size, self.checksum, self.token = size, checksum, token
        self._directory = directory
        self._removal = _Removal(keep, token)
        self._reader: Any = None
        self._checked = False
        self._synced = keep
        weakref.finalize(self, _remove, path, self._removal)

    @property
    def durable(self) -> bool:
        return self._directory is None

    @property
    def kept(self) -> bool:
        """Whether a saved state names the file, so that it outlives this object."""
        return self._removal.keep

    def keep(self, keep: bool) -> None:
        """Sets whether a saved state names the file. If it does, the file is fsynced first."""
        if keep and not self._synced:
            fsync(self.path)
            self._synced = True
        self._removal.keep = keep

    def to_dict(self) -> dict[str, Any]:
        """The file as JSON values, with its name but no directory: a reader may have moved it."""
        return {
            "name": os.path.basename(self.path), "txn": self.txn, "rows": self.rows, "batches": self.batches,
            "nbytes": self.nbytes, "size": self.size, "checksum": self.checksum,
            "token": self.token,
        }  # fmt: skip

    def check(self) -> None:
        """Checks that the file exists with this size and token.

        Raises:
            SpillError: if it does not.
        """
        try:
            size, end = _end(self.path)
        except FileNotFoundError:
            raise SpillError(self.path, self.txn, "is missing") from None
        except OSError as problem:
            raise SpillError(self.path, self.txn, f"cannot be read ({problem.strerror})") from None
        if size == -1:
            raise SpillError(self.path, self.txn, "cannot be read (it is not a regular file)")
        if size != self.size:
            raise SpillError(self.path, self.txn, f"is damaged: it has {size} bytes and had {self.size}")
        if end != _MARK + self.token.encode():
            raise SpillError(self.path, self.txn, "is damaged: it ends with another token")

    def read(self, batch: int) -> pa.RecordBatch:
        """Reads one batch by its ordinal. The file stays open until the last batch is read."""
        if self._reader is None:
            self._reader = self._open()
        found = self._batch(self._reader, batch)
        if batch == self.batches - 1:
            self._reader = None
        return found

    def read_from(self, batch: int) -> Iterator[pa.RecordBatch]:
        """Reads the batches from ordinal `batch` on."""
        reader = self._open()
        for k in range(batch, self.batches):
            yield self._batch(reader, k)

    def _open(self) -> Any:
        self.check()
        try:
            source = pa.OSFile(self.path)
            # Small files are read once. Larger ones are read first for the checksum.
            whole = source.read_buffer(self.size) if self.size <= PIECE_BYTES else None
            if not self._checked:
                checksum = _checksum(self.path) if whole is None else crc32(whole)
                if checksum != self.checksum:
                    raise SpillError(self.path, self.txn, "is damaged: it has another checksum")
            reader = pa.ipc.open_file(source if whole is None else whole, footer_offset=self.size - _END)
        except (OSError, pa.ArrowInvalid) as problem:
            raise SpillError(self.path, self.txn, f"cannot be read ({problem})") from None
        self._checked = True
        if reader.num_record_batches != self.batches or not reader.schema.equals(TAGGED_SCHEMA):
            raise SpillError(self.path, self.txn, "does not contain the rows that were written")
        return reader

    def _batch(self, reader: Any, k: int) -> pa.RecordBatch:
        try:
            # The checksum detects accidental damage, but not tampering.
            return checked_table(reader.get_batch(k), f"batch {k}")
        except (OSError, ValueError, pa.ArrowException) as problem:
            raise SpillError(self.path, self.txn, f"cannot be read ({problem})") from None


class Spiller:
    """Writes the spill files of one decoder, and tracks which of them the last saved state names.

    Args:
        directory: directory of the files; None for a temporary one, created on demand.
    """

    def __init__(self, directory: str | None) -> None:
        # The process may change its working directory.
        self.directory = None if directory is None else os.path.abspath(directory)
        self._private: PrivateDirectory | None = None
        self._chance = secrets.token_hex(8)
        self._number = 0
        self._saved: frozenset[SpillFile] = frozenset()
        self._next: frozenset[SpillFile] | None = None

    def write(self, txn: int, batches: Iterator[pa.RecordBatch]) -> SpillFile:
        """Writes a new file with at least one batch.

        Raises:
            OSError: if it cannot be written, as on a full disk. Then no file remains.
        """
        if self.directory is not None:
            if not os.path.isdir(self.directory):
                make_directory(self.directory, 0o700)
        elif self._private is None:
            self._private = PrivateDirectory()
        directory = self.directory if self._private is None else self._private.path
        assert directory is not None
        path = os.path.join(directory, NAME.format(chance=self._chance, number=self._number))
        self._number += 1
        rows = count = nbytes = 0
        first = next(batches)
        options = pa.ipc.IpcWriteOptions(compression=_compression(first))
        token = secrets.token_hex(16)
        try:
            # Readable only by the owner, whatever the umask.
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                try:
                    sink = _Checked(file)
                    with pa.ipc.new_file(pa.PythonFile(sink, "w"), TAGGED_SCHEMA, options=options) as writer:
                        for batch in chain([first], batches):
                            writer.write_batch(batch)
                            rows, count, nbytes = rows + batch.num_rows, count + 1, nbytes + batch.nbytes
                    sink.write(_MARK + token.encode())
                    file.flush()
                except BaseException:
                    os.unlink(path)  # safe: `open` created this file above
                    raise
        except OSError as problem:
            # On a full disk, closing the file raises another error.
            problem.add_note(f"spill file {path} cannot be written; nothing of it is left")
            raise
        return SpillFile(
            path, txn=txn, rows=rows, batches=count, nbytes=nbytes, size=sink.size, checksum=sink.checksum,
            token=token, keep=False, directory=self._private,
        )  # fmt: skip

    def find(self, entry: dict[str, Any]) -> SpillFile:
        """The file that `SpillFile.to_dict` described.

        Raises:
            SpillError: if the file is missing or damaged.
            ValueError: if it is not a spill file of this state, or if this spiller has no directory. Then the file is
                neither read nor removed.
        """
        values = dict(entry)
        name = values.pop("name")
        if not _NAME.fullmatch(name) or not _TOKEN.fullmatch(values["token"]):
            raise ValueError(
                "somebody edited the state: it names a spill file with a name or a token that no spill file has"
            )
        if self.directory is None:
            raise ValueError(
                f"the state names spill files, such as {name}: pass Options(spill_directory=...) with the directory "
                "that has them"
            )
        file = SpillFile(os.path.join(self.directory, name), keep=True, **values)
        with contextlib.suppress(OSError):  # `check` raises the error
            size, end = _end(file.path)
            # For a file of another size, `check` raises SpillError.
            if size == -1 or (size == file.size and end != _MARK + file.token.encode()):
                raise ValueError(
                    f"{file.path} is not the spill file that the state names: somebody replaced the file"
                )
        file.check()
        return file

    def saved(self, files: Iterable[SpillFile]) -> None:
        """Records that a state with these files was saved. After the next call only this state may be resumed."""
        named = frozenset(file for file in files if file.durable)
        for file in named:
            file.keep(True)
        if named and self.directory is not None:
            fsync(self.directory)
        self._next = named

    def resumed(self, files: Iterable[SpillFile]) -> None:
        """Records that the decoder began with a state with these files. This state may be resumed again."""
        self._saved = frozenset(file for file in files if file.kept)

    def went_on(self) -> None:
        """Records that a call succeeded. The state saved last before this call replaces the previous one."""
        if self._next is not None:
            for file in self._saved - self._next:
                file.keep(False)
            self._saved, self._next = self._next, None

    def close(self, discard: bool) -> None:
        """Releases all files. With `discard`, files that saved states name are removed, too."""
        if discard:
            for file in self._saved | (self._next or frozenset()):
                file.keep(False)
        self._saved, self._next, self._private = frozenset(), None, None


def _compression(batch: pa.RecordBatch) -> str | None:
    """LZ4 if the payloads compress well: then it is faster than the disk, otherwise several times slower."""
    if not pa.Codec.is_available("lz4"):
        return None
    column = batch.column("payload")
    _, offsets, data = column.buffers()
    begin = memoryview(offsets).cast("i")[column.offset] if data is not None else 0
    sample = data[begin : begin + _SAMPLE] if data is not None else b""
    return "lz4" if 2 * len(pa.compress(sample, "lz4", asbytes=True)) < len(sample) else None


class _Checked(io.RawIOBase):
    """A file that counts the written bytes and computes their CRC-32."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.size = 0
        self.checksum = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        self.file.write(data)
        self.size += memoryview(data).nbytes
        self.checksum = crc32(data, self.checksum)
        return memoryview(data).nbytes


def _checksum(path: str) -> int:
    checksum = 0
    chunk = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(chunk):
            checksum = crc32(chunk[:size], checksum)
    return checksum
