"""What a table's directory is called, among typed files and in snapshots."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

__all__ = ["table_directory"]

# File systems allow 255 bytes. What is unfinished has a longer name, with a dot and some 50 characters around it.
_MOST = 200
_DIGITS = 64


def table_directory(namespace: str, name: str) -> str:
    """The name of a table's directory. It is never hidden, no two tables share one, and it has at most 200 characters.

    It is the schema's and the table's name with a dot between. In both, characters other than letters, digits, `_` and
    `-` of ASCII are percent-encoded in UTF-8, and so is a `_` at the beginning. Where this is longer than 200
    characters, the end is replaced by `~` and the SHA-256 of the two names (in UTF-8, a zero byte between them), in
    hexadecimal digits.

    >>> table_directory("public", "orders"), table_directory("_a.b", "C/d")
    ('public.orders', '%5Fa%2Eb.C%2Fd')
    >>> len(table_directory("public", "注" * 21)), len(table_directory("é" * 31, "ü" * 31))
    (196, 200)
    """
    whole = f"{_escaped(namespace)}.{_escaped(name)}"
    if whole.startswith("_"):
        whole = "%5F" + whole[1:]  # or it would be hidden from who lists directories
    if len(whole) <= _MOST:
        return whole
    digest = hashlib.sha256(f"{namespace}\0{name}".encode()).hexdigest()
    begin = re.sub("%.?$", "", whole[: _MOST - 1 - _DIGITS])
    return f"{begin}~{digest}"


def _escaped(name: str) -> str:
    # `~` stands only before a digest: a name that was shortened is never another table's whole name.
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
