"""Deletion vectors: the rows of a file of a Delta table that are marked deleted. Needs `pip install 'pyroaring>=1.0'`.

The format is that of Delta's protocol, "Deletion Vectors" and "Deletion Vector Format". A file of vectors has a version
byte, and for each vector its size and its CRC-32 with the most significant byte first.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import unquote
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import Store

__all__ = ["OWN_VECTORS", "VECTORS", "Vector", "with_rows", "write_vectors"]

# The names of files of vectors.
VECTORS = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
# The directory of those of this package, in that of a table. Outside of a directory with such a name, a `vacuum` of
# delta-rs 1.6.6 with `full=True` removes vectors that the table has.
OWN_VECTORS = "_vectors"
_VERSION = b"\x01"
# The portable form of 64-bit roaring bitmaps follows it.
_MAGIC = (1681511377).to_bytes(4, "little")
# A vector of a file with 2**33 rows cannot be larger.
_MOST_BYTES = 1 << 30
_UUID_CHARACTERS = 20
# Z85 has the same digits as Python's base 85, under other characters.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)


@dataclass(frozen=True)
class Vector:
    """A deletion vector, as Delta's log describes it.

    Attributes:
        storage: `u` for a file in the table's directory, `p` for one at an absolute path, `i` for the log itself.
        place: the prefix and the UUID of the file; its path; or the vector. The UUID and the vector are in Z85.
        offset: where it begins in the file, in bytes; None is 0.
        nbytes: its size in bytes, without the size and the checksum that the file has.
        count: how many rows are marked.
    """

    storage: str
    place: str
    offset: int | None
    nbytes: int
    count: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Vector:
        """The vector of a `deletionVector` of the log.

        Raises:
            ValueError: if it is none.
        """
        try:
            vector = cls(
                values["storageType"],
                values["pathOrInlineDv"],
                values.get("offset"),
                values["sizeInBytes"],
                values["cardinality"],
            )
            vector._check()
        except (KeyError, TypeError) as problem:
            raise ValueError(f"the log has a deletion vector in an unknown form: {problem!r}") from None
        return vector

    def _check(self) -> None:
        offset = 0 if self.offset is None else self.offset
        numbers = all(type(each) is int and each >= 0 for each in (offset, self.nbytes, self.count))
        if self.storage not in ("u", "p", "i") or not isinstance(self.place, str) or not numbers:
            raise ValueError("the log has a deletion vector in an unknown form")

    def to_json(self) -> dict[str, Any]:
        """The `deletionVector` of the log."""
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.place,
            **offset,
            "sizeInBytes": self.nbytes,
            "cardinality": self.count,
        }

    @property
    def file(self) -> str | None:
        """The name of its file in the table's directory; None if it is elsewhere."""
        if self.storage != "u":
            return None
        prefix, encoded = self.place[:-_UUID_CHARACTERS], self.place[-_UUID_CHARACTERS:]
        data = _decoded(encoded)
        if len(data) != 16:
            raise ValueError(f"the deletion vector {self.place!r} has no UUID")
        return f"{prefix}{'/' if prefix else ''}deletion_vector_{uuid.UUID(bytes=data)}.bin"

    def positions(self, store: Store, directory: str, rows: int) -> npt.NDArray[np.int64]:
        """The positions of the marked rows in their file, ascending. Arguments and errors as for `bitmap`."""
        found = self.bitmap(store, directory, rows)
        return np.frombuffer(found.to_array(), np.int64) if self.count else np.empty(0, np.int64)

    def bitmap(self, store: Store, directory: str, rows: int) -> Any:
        """The positions of the marked rows in their file, as a bitmap of pyroaring.

        Args:
            store: the store of the table.
            directory: the table's directory in it.
            rows: how many rows the file has.

        Raises:
            FileNotFoundError: if the file of the vector is gone.
            ValueError: if the vector is damaged, or marks rows that the file does not have.
            ImportError: if `pyroaring` is not installed.
        """
        bitmap_type = _bitmap_type()
        name, data = self._data(store, directory)
        if data[: len(_MAGIC)] != _MAGIC:
            raise _damaged(name, "it does not have the portable form")
        try:
            bitmap = bitmap_type.deserialize(data[len(_MAGIC) :])
        except (ValueError, IndexError):
            raise _damaged(name, "it is not a roaring bitmap") from None
        if len(bitmap) != self.count:
            raise _damaged(name, f"it marks {len(bitmap)} rows, but the log says {self.count}")
        if self.count and bitmap.max() >= rows:
            raise _damaged(name, f"it marks row {bitmap.max()} of a file with {rows} rows")
        return bitmap

    def _data(self, store: Store, directory: str) -> tuple[str, bytes]:
        """(names the vector for errors, its bytes)."""
        if self.storage == "i":
            data = _decoded(self.place)
            if not 0 <= len(data) - self.nbytes < 4:
                raise _damaged("the log", "its size is wrong")
            return "the log", data[: self.nbytes]
        file = self.file
        name = unquote(self.place) if file is None else os.fspath(store.at(f"{directory}/{file}"))
        opened = open_file(name)
        with open(opened, "rb") if isinstance(opened, str) else opened as content:
            return name, self._read(content, name)

    def _read(self, content: IO[bytes], name: str) -> bytes:
        if self.nbytes > _MOST_BYTES:
            raise _damaged(name, f"{self.nbytes} bytes are too many")
        if content.read(1) != _VERSION:
            raise _damaged(name, "the file has an unknown version")
        content.seek(0 if self.offset is None else self.offset)
        size = content.read(4)
        if int.from_bytes(size, "big") != self.nbytes or len(size) < 4:
            raise _damaged(name, "its size is wrong")
        data, checksum = content.read(self.nbytes), content.read(4)
        if len(data) < self.nbytes or checksum != crc32(data).to_bytes(4, "big"):
            raise _damaged(name, "its checksum is wrong, or it is cut off")
        return data


def with_rows(positions: npt.NDArray[np.int64], before: Any = None) -> Any:
    """A bitmap of positions, and of those of another one.

    Raises:
        ImportError: if `pyroaring` is not installed.
    """
    found = _bitmap_type()(array("Q", np.asarray(positions, np.uint64).tobytes()))
    return found if before is None else found | before


def write_vectors(store: Store, directory: str, rows: Mapping[str, Any]) -> dict[str, Vector]:
    """Writes vectors into one new file of a table.

    Args:
        store: the store of the table.
        directory: the table's directory in it.
        rows: {file: the bitmap of the positions of its marked rows}.

    Returns:
        {file: its vector}.
    """
    identity, vectors = uuid.uuid4(), {}
    place = OWN_VECTORS + _encoded(identity.bytes)
    with store.write(f"{directory}/{OWN_VECTORS}/deletion_vector_{identity}.bin") as file:
        file.write(_VERSION)
        for name, bitmap in rows.items():
            bitmap.run_optimize()
            data, offset = _MAGIC + bitmap.serialize(), file.tell()
            file.write(len(data).to_bytes(4, "big") + data + crc32(data).to_bytes(4, "big"))
            vectors[name] = Vector("u", place, offset, len(data), len(bitmap))
    return vectors


def _bitmap_type() -> Any:
    try:
        from pyroaring import BitMap64
    except ImportError:
        raise ImportError("deletion vectors need pyroaring: pip install 'pyroaring>=1.0'") from None
    return BitMap64


def _encoded(data: bytes) -> str:
    return base64.b85encode(data).translate(_TO_Z85).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))
    except ValueError:
        raise ValueError("the log has a deletion vector that is not Z85") from None


def _damaged(name: str, why: str) -> ValueError:
    return ValueError(f"a deletion vector in {name} is damaged: {why}")
