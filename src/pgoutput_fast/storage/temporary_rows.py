"""Rows in an unlinked temporary file: invisible to other processes, and gone when the process ends."""

from __future__ import annotations

import io
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pgoutput_fast.base.arguments import expect_list

__all__ = ["TemporaryRows"]


class TemporaryRows:
    """A file of rows, read one batch at a time, also by several readers concurrently.

    Args:
        directory: a directory with enough space, created if it does not exist; None for that of temporary files.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        if directory is not None:
            os.makedirs(directory, exist_ok=True)
        self._file = tempfile.TemporaryFile(prefix="pgoutput-fast-", dir=directory)  # noqa: SIM115
        self._closing = weakref.finalize(self, self._file.close)

    def close(self) -> None:
        """Gives the space back now, and not when nothing refers to the rows any more, such as an error's traceback."""
        self._closing()

    def write(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
        """Appends batches and returns their offset for `read`.

        Raises:
            OSError: if there is not enough space.
        """
        expect_list("batches", batches)
        place = self._file.seek(0, os.SEEK_END)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(_Unclosed(self._file), schema, options=options) as writer:
            for each in batches:
                writer.write_batch(each)
        self._file.flush()
        return place

    def read(self, place: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Reads the batches of a `write`.

        Args:
            place: the offset that `write` returned.
            columns: which columns, in this order; None for all.
        """
        if columns is not None:
            expect_list("columns", columns)
        with pa.ipc.open_stream(_From(self._file.fileno(), place)) as whole:
            schema = whole.schema
        names = schema.names if columns is None else columns
        options = pa.ipc.IpcReadOptions(
            included_fields=sorted({schema.get_field_index(each) for each in names})
        )
        with pa.ipc.open_stream(_From(self._file.fileno(), place), options=options) as reader:
            for batch in reader:
                yield batch.select(list(names))


class _Unclosed(io.RawIOBase):
    """A file that stays open when its writer is closed."""

    def __init__(self, file: object) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        return self._file.write(content)  # type: ignore[attr-defined,no-any-return]


class _From(io.RawIOBase):
    """A file from an offset on, with its own position."""

    def __init__(self, descriptor: int, place: int) -> None:
        self._descriptor, self._place = descriptor, place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        content = os.pread(self._descriptor, len(view), self._place)
        view[: len(content)] = content
        self._place += len(content)
        return len(content)
