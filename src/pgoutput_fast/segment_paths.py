"""Where segments lie: files, directories and globs, on this machine or in any store that `pyarrow.fs` knows."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa

__all__ = ["Paths", "find_files", "is_uri", "open_file", "open_place", "shown", "split_uri"]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# As Hadoop calls it.
_SAME = {"s3a": "s3", "s3n": "s3"}


def find_files(paths: Paths) -> list[str]:
    """The files that `paths` mean: each a file, a directory (its `*.parquet`) or a glob; local, or a URI.

    A query, such as `s3://bucket/segments?endpoint_override=http://localhost:9000`, belongs to each of the files. Names
    that begin with a dot or an underscore are left out of directories and globs: what was never finished.

    Raises:
        FileNotFoundError: if a path that is no glob is not there.
        ValueError: for a URI that pyarrow does not know.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    return list(dict.fromkeys(file for path in paths for file in _found(os.fspath(path))))


def open_file(path: str) -> Any:
    """What `pyarrow.parquet` takes for one of `find_files`: a path, or an open file of a store."""
    if not _URI.match(path):
        return path
    store, inside = open_place(path)
    try:
        return store.open_input_file(inside)
    except FileNotFoundError:
        raise FileNotFoundError(f"segment {shown(path)} is not there") from None


def shown(path: str | os.PathLike[str]) -> str:
    """The path as a message may have it: without what a URI says of who may read it, and how.

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
        raise FileNotFoundError(f"there are no segments at {path}: no such file or directory")
    return sorted(each for each in found if _is_finished(each))


def _found_in_store(uri: SplitResult) -> list[str]:
    from pyarrow import fs

    # In a URI a question mark begins the query: it is no wildcard.
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
            raise FileNotFoundError(
                f"there are no segments at {shown(uri.geturl())}: no such file or directory"
            )
        if kind == fs.FileType.File:
            return [uri.geturl()]
        files = store.get_file_info(fs.FileSelector(root))
        found = [f.path for f in files if f.type == fs.FileType.File and f.path.endswith(".parquet")]
    return [
        uri._replace(path=fixed + each[len(root) :]).geturl() for each in sorted(found) if _is_finished(each)
    ]


def _is_finished(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))


def _matches(path: str, pattern: str) -> bool:
    """Part by part: a star stands for no slash."""
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def is_uri(path: str) -> bool:
    """Whether it is a URI, and no path of this machine."""
    return _URI.match(path) is not None


def split_uri(path: str) -> SplitResult:
    """A URI's parts, with the scheme as pyarrow calls it."""
    uri = urlsplit(path)
    return uri._replace(scheme=_SAME.get(uri.scheme, uri.scheme))


def open_place(path: str) -> tuple[Any, str]:
    """(a `pyarrow.fs.FileSystem`, the path inside) of a URI.

    Raises:
        ValueError: for a URI that pyarrow does not know.
    """
    from pyarrow import fs

    try:
        path = split_uri(path).geturl()
        store, inside = fs.FileSystem.from_uri(path)
    except pa.ArrowException as problem:
        # Which may repeat all of it.
        raise ValueError(f"segments at {shown(path)}: {str(problem).replace(path, shown(path))}") from None
    return store, inside
