"""Names of the directories of tables, in snapshots and in targets of mirrors and Spark."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

__all__ = ["MIRROR", "table_directory", "table_of"]

# The directory of a mirror's state, beside those of tables.
MIRROR = "_mirror"

# File systems allow 255 bytes, and names of unfinished files and directories are some 50 characters longer.
_MOST = 200
_DIGITS = 64


def table_directory(namespace: str, name: str) -> str:
    """The name of a table's directory: never hidden, unique, and at most 200 characters long.

    The name is the schema's name, a dot, and the table's name. In both names, every character except the letters,
    digits, `_` and `-` of ASCII is percent-encoded in UTF-8. A `_` at the beginning is percent-encoded, too. If the
    result is longer than 200 characters, its end is replaced by `~` and the SHA-256, in hexadecimal digits, of the two
    names (in UTF-8, with a zero byte between them).

    >>> table_directory("public", "orders"), table_directory("_a.b", "C/d")
    ('public.orders', '%5Fa%2Eb.C%2Fd')
    >>> len(table_directory("public", "注" * 21)), len(table_directory("é" * 31, "ü" * 31))
    (196, 200)
    """
    whole = f"{_escaped(namespace)}.{_escaped(name)}"
    if whole.startswith("_"):
        whole = "%5F" + whole[1:]  # a leading underscore would hide it from readers that list directories
    if len(whole) <= _MOST:
        return whole
    digest = hashlib.sha256(f"{namespace}\0{name}".encode()).hexdigest()
    begin = re.sub("%.?$", "", whole[: _MOST - 1 - _DIGITS])
    return f"{begin}~{digest}"


def table_of(directory: str) -> tuple[str, str] | None:
    """(schema, table) from a name of `table_directory`; None for a shortened name or any other.

    >>> table_of("public.orders"), table_of("%5Fa%2Eb.C%2Fd"), table_of("orders")
    (('public', 'orders'), ('_a.b', 'C/d'), None)
    """
    namespace, dot, name = directory.partition(".")
    return (unquote(namespace), unquote(name)) if dot and "~" not in directory else None


def _escaped(name: str) -> str:
    # `~` occurs only before a digest, so a shortened name is never the full name of another table.
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
