"""Paths and URIs for Spark."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from pgoutput_fast.storage.paths import is_uri

__all__ = ["spark_path"]

# Characters of Hadoop's globs.
_GLOB = re.compile(r"([\\\[\]{}*?])")


def spark_path(path: str | os.PathLike[str]) -> str:
    """Returns the path or URI of a file for Spark: a glob, as a URI without escapes, query and password.

    >>> spark_path("s3a://user:secret@bucket/a%20b/c{d}?region=x")
    's3a://bucket/a b/c\\\\{d\\\\}'
    """
    text = os.fspath(path)
    if not is_uri(text):
        return _escaped(f"file://{os.path.abspath(text)}")
    uri = urlsplit(text)
    user, _, host = uri.netloc.rpartition("@")
    # In Azure URIs this is the container, without a password.
    place = uri.netloc if ":" not in user else host
    return _escaped(f"{uri.scheme}://{place}{unquote(uri.path).rstrip('/')}")


def _escaped(path: str) -> str:
    return _GLOB.sub(r"\\\1", path)
