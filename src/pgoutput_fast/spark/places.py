"""Paths and URIs as Spark takes them."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from pgoutput_fast.storage.paths import is_uri

__all__ = ["spark_path"]

# Characters of Hadoop's globs.
_GLOB = re.compile(r"([\\\[\]{}*?])")


def spark_path(path: str | os.PathLike[str], name: str = "", *, glob: bool = True) -> str:
    """Returns the path of a file or directory as Spark takes it: a URI without escapes, query and password.

    Args:
        path: a path or URI.
        name: of a file or directory in it; empty for `path` itself.
        glob: whether Spark takes it for a glob, so that the characters of globs need a backslash.

    >>> spark_path("s3a://user:secret@bucket/a%20b?region=x", "c{d}")
    's3a://bucket/a b/c\\\\{d\\\\}'
    """
    text, below = os.fspath(path), f"/{name}" if name else ""
    if not is_uri(text):
        found = f"file://{os.path.abspath(text)}{below}"
        return _GLOB.sub(r"\\\1", found) if glob else found
    uri = urlsplit(text)
    user, _, host = uri.netloc.rpartition("@")
    # In URIs of Azure a container stands there, without a password.
    place = uri.netloc if ":" not in user else host
    found = f"{uri.scheme}://{place}{unquote(uri.path).rstrip('/')}{below}"
    return _GLOB.sub(r"\\\1", found) if glob else found
