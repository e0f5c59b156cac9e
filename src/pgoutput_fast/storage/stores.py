"""Stores of files: a local directory, or a prefix in any store that `pyarrow.fs` supports.

A file appears atomically, and is then durable. A name with slashes is a file in a subdirectory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

import pyarrow as pa

from pgoutput_fast.storage.fsync import check_file_mode, directory_mode, fsync, make_directory, publish
from pgoutput_fast.storage.paths import (
    FoundFile,
    check_place,
    is_hidden,
    is_uri,
    open_place,
    redacted_uri,
    split_uri,
)

__all__ = [
    "Entry",
    "Store",
    "hidden_name",
    "is_unfinished",
    "make_target",
    "missing_directories",
    "name_target",
    "open_store",
    "remove_directories",
]

# In these stores a prefix exists once a file below it exists.
_WITHOUT_DIRECTORIES = ("s3", "gcs", "abfs")
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}")
# Attempts to read a file that another process replaces meanwhile.
_TRIES = 5
# Errors for a path at which no directory can be created.
_NO_PLACE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
_COLLAPSED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

# Errors of a write, which do not name the file.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Entry:
    """A file.

    Attributes:
        name: path relative to the store's root, with slashes.
        nbytes: size in bytes.
        modified: time of the last write, in seconds since 1970.
    """

    name: str
    nbytes: int
    modified: float

    @property
    def hidden(self) -> bool:
        """Whether the file is unfinished or has no data: a part of its name begins with a dot or an underscore."""
        return any(map(is_hidden, self.name.split("/")))


class Store(ABC):
    """A place for files."""

    #: Whether the store is a local directory.
    local: bool

    @abstractmethod
    def __str__(self) -> str:
        """The store for messages, without credentials."""

    @abstractmethod
    def at(self, name: str) -> Path | str:
        """The path or URI of a file."""

    @abstractmethod
    def limit(self, file_mode: int | None) -> None:
        """Limits the permissions of files created from now on; directories get matching permissions.

        The umask removes further permissions.

        Args:
            file_mode: maximum permissions of a file, such as 0o640; None if only the umask applies.

        Raises:
            ValueError: for an invalid mode (see `check_file_mode`), or if the store has no permissions.
        """

    @abstractmethod
    def make(self) -> None:
        """Creates the root if it does not exist."""

    @abstractmethod
    def harden(self) -> None:
        """Makes all visible files durable, even if a process was killed or failed during an fsync before.

        This covers files in the root and in directories of the root.

        Raises:
            OSError: if this fails. Then no file in the store is reliable.
        """

    @abstractmethod
    def entries(self, below: str = "", *, recursive: bool = False) -> list[Entry]:
        """The files of the root, or of its directory `below`, sorted by name; empty without such a directory."""

    def names(self, below: str = "") -> list[str]:
        """The names of `entries`, in any order, from a directory listing without a stat per file."""
        return [entry.name for entry in self.entries(below)]

    def found(self, entry: Entry) -> FoundFile:
        """A file of `entries` in the form of `find_files`."""
        return FoundFile(os.fspath(self.at(entry.name)), entry.nbytes, int(entry.modified * 1e9))

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a small file.

        Raises:
            FileNotFoundError: if the file does not exist.
        """

    @abstractmethod
    def write(self, name: str, *, replace: bool = False) -> AbstractContextManager[IO[bytes]]:
        """Opens a file to write and read back. It appears, durable, when the block ends without an error.

        Raises:
            FileExistsError: if the file exists and `replace` is not set.
            OSError: if the file cannot be written. Then either it has not appeared, or the whole file has appeared but
                may be lost in a crash of the machine. Call `harden` to make it durable.
        """

    @abstractmethod
    def remove(self, name: str) -> bool:
        """Removes a file. Returns whether it existed."""

    @abstractmethod
    def rename(self, name: str, new_name: str, *, replace: bool = True) -> None:
        """Renames a file durably within its directory.

        Args:
            name: its name.
            new_name: its new name.
            replace: whether a file of the new name is replaced. Object stores do not prevent that if it appears now.

        Raises:
            FileNotFoundError: if the file does not exist.
            FileExistsError: if there is a file of the new name, which is not to be replaced.
        """

    def put(self, name: str, content: bytes) -> None:
        """Writes a small file, and replaces a file of this name."""
        with self.write(name, replace=True) as file:
            file.write(content)


def missing_directories(store: Store, below: str = "") -> list[Path]:
    """The missing directories of a local store, or of a name in it, deepest first."""
    if not store.local:
        return []
    directory = Path(store.at(below))
    return [each for each in (directory, *directory.parents) if not each.exists()]


def remove_directories(directories: Iterable[Path]) -> None:
    """Removes empty directories, up to the first one that is not empty."""
    with contextlib.suppress(OSError):
        for each in directories:
            each.rmdir()


def hidden_name(name: str) -> str:
    """A new name for an unfinished file, which readers ignore and `is_unfinished` recognizes.

    >>> is_unfinished(hidden_name("file.parquet")), is_unfinished("file.parquet")
    (True, False)
    """
    return f".{name}.{secrets.token_hex(8)}"


def name_target(problem: BaseException, target: Path) -> None:
    """Replaces the temporary file in an error by its target, in the same directory.

    >>> problem = PermissionError(13, "Permission denied", "/lake/.t.parquet.0123456789abcdef")
    >>> name_target(problem, Path("/lake/t.parquet"))
    >>> problem.filename
    '/lake/t.parquet'
    """
    if not isinstance(problem, OSError) or not isinstance(problem.filename, str | os.PathLike):
        return
    parent = target.absolute().parent
    below = Path(problem.filename).absolute()
    if parent in below.parents and below.relative_to(parent).parts[0].startswith("."):
        problem.filename = os.fspath(target)


def is_unfinished(name: str) -> bool:
    """Whether the name is from `hidden_name`."""
    return _UNFINISHED.fullmatch(name) is not None


def open_store(place: str | os.PathLike[str]) -> Store:
    """The store of a directory or a URI.

    Raises:
        ValueError: for an empty text, for a URI that pyarrow does not support, for one with a single slash, or for a
            URI that was converted to a Path.
    """
    text = os.fspath(place)
    if isinstance(place, os.PathLike) and _COLLAPSED.match(text):
        raise ValueError(f"{text} was a URI, but a path has no double slash: pass the URI as a str")
    check_place(text)
    if not is_uri(text):
        return _Directory(Path(text))
    uri = split_uri(text)
    return _Directory(Path(unquote(uri.path))) if uri.scheme == "file" else _Remote(text)


def make_target(store: Store) -> None:
    """Creates the root of a store for tables or segments.

    Raises:
        NotADirectoryError: if the root is a file, is below one, or is a dangling link.
        OSError: if it cannot be created.
    """
    try:
        store.make()
    except (FileExistsError, NotADirectoryError) as problem:
        if store.local and (link := Path(store.at(""))).is_symlink() and not link.exists():
            raise NotADirectoryError(
                f"the target {store} is a symbolic link to {os.readlink(link)}, which does not exist: make this "
                "directory, or remove the link"
            ) from problem
        raise NotADirectoryError(
            f"the target {store} is a file, or lies below one: give a directory, which need not exist"
        ) from problem
    except OSError as problem:
        if store.local and problem.errno in _NO_PLACE:
            problem.add_note(
                f"The target {store} cannot be made: choose a place where you may make directories"
            )
        raise


class _Directory(Store):
    local = True

    def __init__(self, root: Path) -> None:
        self._root = root
        # Directories that this process has made durable, with their parents up to the root.
        self._sure: set[Path] = set()
        self._file_mode = 0o666
        self._directory_mode = directory_mode(None)

    def __str__(self) -> str:
        return str(self._root)

    def at(self, name: str) -> Path:
        return self._root / name

    def limit(self, file_mode: int | None) -> None:
        check_file_mode(file_mode)
        self._file_mode = 0o666 if file_mode is None else file_mode
        self._directory_mode = directory_mode(file_mode)

    def make(self) -> None:
        make_directory(self._root, self._directory_mode)

    def harden(self) -> None:
        with os.scandir(self._root) as found:
            below = [self._root / each.name for each in found if each.is_dir(follow_symlinks=False)]
        fsync(self._root)
        for directory in below:
            # Skip directories that this user may not read, and so has not written, such as lost+found.
            with contextlib.suppress(PermissionError, FileNotFoundError):
                fsync(directory)

    def entries(self, below: str = "", *, recursive: bool = False) -> list[Entry]:
        found: list[Entry] = []
        try:
            with os.scandir(self._root / below) as files:
                for file in files:
                    name = f"{below}/{file.name}" if below else file.name
                    if file.is_dir():
                        found += self.entries(name, recursive=True) if recursive else []
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            status = file.stat()
                            # Opening a pipe would block until it has a writer.
                            if stat.S_ISREG(status.st_mode):
                                found.append(Entry(name, status.st_size, status.st_mtime))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda each: each.name)

    def names(self, below: str = "") -> list[str]:
        try:
            with os.scandir(self._root / below) as files:
                # No pipes, which would block when opened. Dangling links stay: opening one is an error.
                found = [
                    file.name for file in files if file.is_file() or (file.is_symlink() and not file.is_dir())
                ]
                return [f"{below}/{name}" if below else name for name in found]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes:
        try:
            return (self._root / name).read_bytes()
        except NotADirectoryError as problem:
            # The root is a file, which counts as a root without files.
            raise FileNotFoundError(*problem.args, problem.filename) from None

    @contextmanager
    def write(self, name: str, *, replace: bool = False) -> Iterator[IO[bytes]]:
        target = self._root / name
        if not replace and target.exists():
            raise FileExistsError(f"{target} exists")
        self._make_below(target.parent)
        hidden = target.with_name(hidden_name(target.name))
        try:
            with open(
                hidden, "x+b", opener=lambda name, flags: os.open(name, flags, self._file_mode)
            ) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.rename(hidden, target)
            else:
                publish(hidden, target)
        except BaseException as problem:
            if isinstance(problem, OSError) and problem.errno in _NO_SPACE and problem.filename is None:
                problem.filename = os.fspath(target)
            name_target(problem, target)
            with contextlib.suppress(FileNotFoundError):
                hidden.unlink()
            raise
        fsync(target.parent)

    def _make_below(self, directory: Path) -> None:
        """Creates a directory in the root, or the root itself, if it does not exist."""
        if directory == self._root:
            if not directory.is_dir():
                make_directory(directory, self._directory_mode)
        elif directory not in self._sure or not directory.is_dir():
            self._make_below(directory.parent)
            # Even if it exists: its creator may have been killed, or have failed, before its fsync.
            with contextlib.suppress(FileExistsError):
                directory.mkdir(self._directory_mode)
            fsync(directory.parent)
            self._sure.add(directory)

    def rename(self, name: str, new_name: str, *, replace: bool = True) -> None:
        if replace:
            os.rename(self._root / name, self._root / new_name)
        else:
            publish(self._root / name, self._root / new_name)
        fsync((self._root / new_name).parent)

    def remove(self, name: str) -> bool:
        try:
            (self._root / name).unlink()
        except FileNotFoundError:
            return False
        return True


class _Remote(Store):
    local = False

    def __init__(self, uri: str) -> None:
        self._uri = split_uri(uri)
        self._files, root = open_place(uri)
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        return redacted_uri(self._uri.geturl())

    def at(self, name: str) -> str:
        return self._uri._replace(path=f"{self._uri.path.rstrip('/')}/{quote(name)}").geturl()

    def limit(self, file_mode: int | None) -> None:
        if file_mode is not None:
            raise ValueError(
                f"{self} is a store without file permissions: leave out file_mode, and set the permissions in the store"
            )

    def make(self) -> None:
        if self._files.type_name not in _WITHOUT_DIRECTORIES:
            self._files.create_dir(self._root, recursive=True)

    def harden(self) -> None:
        """Nothing to do: in an object store a file is durable when it appears."""

    def entries(self, below: str = "", *, recursive: bool = False) -> list[Entry]:
        from pyarrow import fs

        base = f"{self._root}/{below}" if below else self._root
        selector = fs.FileSelector(base, recursive=recursive, allow_not_found=True)
        found = [
            Entry(each.path[len(self._root) + 1 :], each.size, each.mtime_ns / 1e9)
            for each in self._files.get_file_info(selector)
            if each.type == fs.FileType.File
        ]
        return sorted(found, key=lambda each: each.name)

    def found(self, entry: Entry) -> FoundFile:
        return replace(super().found(entry), files=self._files, inside=f"{self._root}/{entry.name}")

    def read(self, name: str) -> bytes:
        inside = f"{self._root}/{name}"
        for left in reversed(range(_TRIES)):
            # This requests the size first. If a longer file replaces it then, the read fails or is truncated.
            with self._files.open_input_file(inside) as file:
                size = file.size()
                try:
                    content: bytes = file.read()
                except OSError:
                    now = self._size(inside)
                    if now is None:
                        raise FileNotFoundError(f"{self}/{name} does not exist") from None
                    if not left or now == size:
                        raise
                    continue
            if self._size(inside) == len(content):
                break
        return content

    @contextmanager
    def write(self, name: str, *, replace: bool = False) -> Iterator[IO[bytes]]:
        inside = f"{self._root}/{name}"
        if not replace and self._size(inside) is not None:
            raise FileExistsError(f"{self}/{name} exists")
        # The file is first written locally: a stream into a store becomes a file when it is closed, even by an error.
        with tempfile.TemporaryFile(prefix="pgoutput-fast-") as file:
            yield file
            file.flush()
            self._upload(file, inside)

    def _upload(self, file: IO[bytes], inside: str) -> None:
        """Uploads the file in one call, so that it is atomic. An upload without all parts never completes."""
        size = os.fstat(file.fileno()).st_size
        if "/" in inside and self._files.type_name not in _WITHOUT_DIRECTORIES:
            self._files.create_dir(inside.rpartition("/")[0], recursive=True)
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
            self._send(content, inside)
        arrived = self._size(inside)
        if arrived != size:
            # Keep it: it may be a file of another process.
            raise OSError(f"{self}: {inside} has {arrived} bytes, but {size} bytes were sent. Write it again")

    def _send(self, content: mmap.mmap, inside: str) -> None:
        buffer = pa.py_buffer(content)
        try:
            with self._files.open_output_stream(inside) as stream:
                stream.write(buffer)
        finally:
            del buffer

    def _size(self, inside: str) -> int | None:
        (info,) = self._files.get_file_info([inside])
        return info.size if info.is_file else None

    def rename(self, name: str, new_name: str, *, replace: bool = True) -> None:
        if self._size(f"{self._root}/{name}") is None:
            raise FileNotFoundError(f"{self}/{name} does not exist")
        if not replace and self._size(f"{self._root}/{new_name}") is not None:
            raise FileExistsError(f"{self}/{new_name} exists")
        self._files.move(f"{self._root}/{name}", f"{self._root}/{new_name}")

    def remove(self, name: str) -> bool:
        inside = f"{self._root}/{name}"
        if self._size(inside) is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(inside)
        return True
