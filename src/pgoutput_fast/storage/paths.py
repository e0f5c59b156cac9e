"""Paths of segments: files, directories and globs, local or in any store that `pyarrow.fs` supports."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa

__all__ = [
    "FoundFile",
    "Paths",
    "absolute",
    "check_place",
    "find_files",
    "is_glob",
    "is_hidden",
    "is_uri",
    "open_file",
    "open_place",
    "redacted_uri",
    "split_uri",
]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/")
# A scheme with a single slash. A one-letter scheme is a Windows drive.
_ONE_SLASH = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/(?!/)(?P<rest>.*)", re.DOTALL)
# The stores of pyarrow, and those whose host may come from the configuration.
_WITHOUT_HOST = ("hdfs", "viewfs")
_SCHEMES = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", *_WITHOUT_HOST)
# A question mark is no wildcard: in a URI it begins the query.
_PATTERN = re.compile(r"[*\[]")
# Hadoop's names of schemes.
_SAME = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True)
class FoundFile:
    """A file as a listing describes it.

    Attributes:
        path: its path or URI.
        nbytes: its size in bytes.
        modified: time of the last write, in nanoseconds since 1970; 0 if unknown.
        files: the open `pyarrow.fs.FileSystem` of a file in a store, None for a local file.
        inside: the path in `files`.
    """

    path: str
    nbytes: int
    modified: int
    files: Any = field(default=None, compare=False, repr=False)
    inside: str = field(default="", compare=False, repr=False)


def find_files(paths: Paths) -> list[FoundFile]:
    """The files at `paths`: files, directories (their `*.parquet`) and globs, as local paths or URIs.

    A query, as in `s3://bucket/segments?endpoint_override=http://localhost:9000`, is kept in the URIs of the files. In
    directories and globs, names that begin with a dot or an underscore are skipped: these files are unfinished.

    Raises:
        FileNotFoundError: if a path that is not a glob does not exist.
        ValueError: for a URI that pyarrow does not support, for a pipe, and as `check_place`.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    found = {file.path: file for path in paths for file in _found(os.fspath(path))}
    return list(found.values())


def is_glob(path: str) -> bool:
    """Whether a path or a URI is a glob.

    >>> is_glob("segments/*.parquet"), is_glob("s3://bucket/[ab]"), is_glob("segments")
    (True, True, False)
    """
    if not _URI.match(path):
        return glob.has_magic(path) and not os.path.exists(path)
    uri = split_uri(path)
    if uri.scheme == "file":
        return is_glob(unquote(uri.path))
    return _PATTERN.search(uri.path) is not None


def open_file(path: str) -> Any:
    """A file of `find_files` in a form that `pyarrow.parquet` takes: a path, or an open file of a store.

    Raises:
        FileNotFoundError: if the store has no such file.
    """
    if not _URI.match(path):
        return path
    store, inside = open_place(path)
    try:
        return store.open_input_file(inside)
    except FileNotFoundError:
        raise FileNotFoundError(f"segment {redacted_uri(path)} does not exist") from None


def absolute(path: str | os.PathLike[str]) -> str:
    """The absolute path, independent of the working directory. A URI is unchanged.

    Raises:
        ValueError: as `check_place`. With a directory prepended, a wrong URI would look like a path.
    """
    text = os.fspath(path)
    check_place(text)
    return text if is_uri(text) else os.path.abspath(text)


def check_place(text: str) -> None:
    """Checks that a text is plausible as a path or a URI.

    Raises:
        ValueError: if it is empty, or a URI with a single slash. As a path, that would be a directory with a colon.
    """
    if not text:
        raise ValueError('an empty text is no path or URI. "." is the working directory')
    found = None if is_uri(text) else _ONE_SLASH.match(text)
    if found is None:
        return
    scheme, rest = found["scheme"], found["rest"]
    own = f"If you mean a directory of this machine with this name, write './{text}'"
    if scheme.lower() in _SCHEMES:
        host = "/" if scheme.lower() in _WITHOUT_HOST else ""
        raise ValueError(
            f"{text} has a single slash after {scheme}: did you mean '{scheme}://{host}{rest}'? {own}"
        )
    raise ValueError(
        f"{text} is no URI of a store that pyarrow knows ({', '.join(_SCHEMES)}). If this machine sees the place as a "
        f"directory, give its path, such as '/{scheme}/{rest}'. {own}"
    )


def is_hidden(name: str) -> bool:
    """Whether readers ignore this name: the file or directory is unfinished or has no data."""
    return name.startswith((".", "_"))


def redacted_uri(path: str | os.PathLike[str]) -> str:
    """The path for messages: a URI without its credentials and its query.

    >>> redacted_uri("s3://key:secret@bucket/segments?region=eu-central-1")
    's3://bucket/segments'
    """
    text = os.fspath(path)
    if not _URI.match(text):
        return text
    uri = urlsplit(text)
    return uri._replace(netloc=uri.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _found(path: str) -> list[FoundFile]:
    check_place(path)
    if not _URI.match(path):
        return _found_here(path)
    uri = split_uri(path)
    if uri.scheme == "file":
        return _found_here(unquote(uri.path))
    return _found_in_store(uri)


def _found_here(path: str) -> list[FoundFile]:
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".parquet"))
        found = [os.path.join(path, name) for name in names]
    elif os.path.exists(path):
        return [_file_here(path)]
    elif glob.has_magic(path):
        found = sorted(each for each in glob.glob(path) if os.path.isfile(each))
    else:
        raise _no_segments(path)
    files = []
    for each in filter(_is_finished, found):
        with suppress(FileNotFoundError):  # removed since the listing
            files.append(_file_here(each))
    return files


def _file_here(path: str) -> FoundFile:
    status = os.stat(path)
    # Opening a pipe would block until it has a writer. A directory raises an error when it is read.
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is no file: it is a pipe, a socket or a device")
    return FoundFile(path, status.st_size, status.st_mtime_ns)


def _found_in_store(uri: SplitResult) -> list[FoundFile]:
    from pyarrow import fs

    match = _PATTERN.search(uri.path)
    fixed = (uri.path if match is None else uri.path[: uri.path.rfind("/", 0, match.start())]).rstrip("/")
    store, root = open_place(uri._replace(path=fixed).geturl())
    if match is not None:
        below = uri.path[len(fixed) :]
        selector = fs.FileSelector(root, recursive=below.count("/") > 1, allow_not_found=True)
        found = [each for each in store.get_file_info(selector) if each.type == fs.FileType.File]
        found = [each for each in found if _matches(each.path[len(root) :], below)]
    else:
        info = store.get_file_info(root)
        if info.type == fs.FileType.NotFound:
            raise _no_segments(uri.geturl())
        if info.type == fs.FileType.File:
            return [_file_in_store(uri.geturl(), store, info)]
        files = store.get_file_info(fs.FileSelector(root))
        found = [each for each in files if each.type == fs.FileType.File and each.path.endswith(".parquet")]
    return [
        _file_in_store(uri._replace(path=fixed + each.path[len(root) :]).geturl(), store, each)
        for each in sorted(found, key=lambda each: each.path)
        if _is_finished(each.path)
    ]


def _file_in_store(uri: str, store: Any, info: Any) -> FoundFile:
    return FoundFile(uri, info.size, info.mtime_ns or 0, store, info.path)


def _no_segments(path: str) -> FileNotFoundError:
    return FileNotFoundError(f"there are no segments at {redacted_uri(path)}: no such file or directory")


def _is_finished(path: str) -> bool:
    return not is_hidden(os.path.basename(path))


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern, part by part. A star does not match a slash."""
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def is_uri(path: str) -> bool:
    """Whether this is a URI, not a local path."""
    return _URI.match(path) is not None


def split_uri(path: str) -> SplitResult:
    """The parts of a URI, with pyarrow's name of the scheme."""
    uri = urlsplit(path)
    return uri._replace(scheme=_SAME.get(uri.scheme, uri.scheme))


def open_place(path: str) -> tuple[Any, str]:
    """(the `pyarrow.fs.FileSystem` of a URI, the path in it).

    Raises:
        ValueError: for a URI that pyarrow does not support.
    """
    from pyarrow import fs

    try:
        path = split_uri(path).geturl()
        store, inside = fs.FileSystem.from_uri(path)
    except pa.ArrowException as problem:
        # pyarrow's message may repeat the whole URI, with its credentials.
        raise ValueError(
            f"cannot open {redacted_uri(path)}: {str(problem).replace(path, redacted_uri(path))}"
        ) from None
    return store, inside
