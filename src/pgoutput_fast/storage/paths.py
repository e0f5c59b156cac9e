"""Paths of segments: files, directories and globs, on this machine or in any store that `pyarrow.fs` knows."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa

__all__ = [
    "Paths",
    "absolute",
    "find_files",
    "is_hidden",
    "is_uri",
    "open_file",
    "open_place",
    "shown",
    "split_uri",
]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# Hadoop's names of the scheme.
_SAME = {"s3a": "s3", "s3n": "s3"}


def find_files(paths: Paths) -> list[str]:
    """The files at `paths`. Each path is a file, a directory (its `*.parquet`) or a glob; it is local or a URI.

    A query, as in `s3://bucket/segments?endpoint_override=http://localhost:9000`, is kept in the URI of each file. In
    directories and globs, names that begin with a dot or an underscore are skipped: these files are not finished.

    Raises:
        FileNotFoundError: if a path that is not a glob does not exist.
        ValueError: for a URI that pyarrow does not know.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return list(dict.fromkeys(file for path in paths for file in _found(os.fspath(path))))


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
        raise FileNotFoundError(f"segment {shown(path)} does not exist") from None


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as every process of this machine finds it, whatever its working directory is. A URI stays as it is."""
    text = os.fspath(path)
    return text if is_uri(text) else os.path.abspath(text)


def is_hidden(name: str) -> bool:
    """Whether readers ignore a file or directory of this name: it is not finished, or has no data."""
    return name.startswith((".", "_"))


def shown(path: str | os.PathLike[str]) -> str:
    """The path as it may stand in a message: a URI without its credentials and its query.

    >>> shown("s3://key:secret@bucket/segments?region=eu-central-1")
    's3://bucket/segments'
    """
    text = os.fspath(path)
    if not _URI.match(text):
        return text
    uri = urlsplit(text)
    return uri._replace(netloc=uri.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _found(path: str) -> list[str]:
    if not _URI.match(path):
        return _found_here(path)
    uri = split_uri(path)
    if uri.scheme == "file":
        return _found_here(unquote(uri.path))
    return _found_in_store(uri)


def _found_here(path: str) -> list[str]:
    if os.path.isdir(path):
        found = glob.glob(os.path.join(glob.escape(path), "*.parquet"))
    elif os.path.exists(path):
        return [path]
    elif glob.has_magic(path):
        found = [each for each in glob.glob(path) if os.path.isfile(each)]
    else:
        raise _no_segments(path)
    return sorted(each for each in found if _is_finished(each))


def _found_in_store(uri: SplitResult) -> list[str]:
    from pyarrow import fs

    # In a URI a question mark begins the query, so it is not a wildcard.
    match = re.search(r"[*\[]", uri.path)
    fixed = (uri.path if match is None else uri.path[: uri.path.rfind("/", 0, match.start())]).rstrip("/")
    store, root = open_place(uri._replace(path=fixed).geturl())
    if match is not None:
        below = uri.path[len(fixed) :]
        selector = fs.FileSelector(root, recursive=below.count("/") > 1, allow_not_found=True)
        found = [each.path for each in store.get_file_info(selector) if each.type == fs.FileType.File]
        found = [each for each in found if _matches(each[len(root) :], below)]
    else:
        kind = store.get_file_info(root).type
        if kind == fs.FileType.NotFound:
            raise _no_segments(uri.geturl())
        if kind == fs.FileType.File:
            return [uri.geturl()]
        files = store.get_file_info(fs.FileSelector(root))
        found = [f.path for f in files if f.type == fs.FileType.File and f.path.endswith(".parquet")]
    return [
        uri._replace(path=fixed + each[len(root) :]).geturl() for each in sorted(found) if _is_finished(each)
    ]


def _no_segments(path: str) -> FileNotFoundError:
    return FileNotFoundError(f"there are no segments at {shown(path)}: no such file or directory")


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
    """(the `pyarrow.fs.FileSystem` of a URI, the path inside of it).

    Raises:
        ValueError: for a URI that pyarrow does not know.
    """
    from pyarrow import fs

    try:
        path = split_uri(path).geturl()
        store, inside = fs.FileSystem.from_uri(path)
    except pa.ArrowException as problem:
        # pyarrow's message may repeat the whole URI, with its credentials.
        raise ValueError(f"cannot open {shown(path)}: {str(problem).replace(path, shown(path))}") from None
    return store, inside
