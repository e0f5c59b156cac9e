"""Databases in another encoding than UTF-8, some bytes of which are no character: in UTF-8 they have no form.

PostgreSQL stores such a byte, but it cannot send it to a session that asked for UTF-8. Here Python converts instead.
"""

from __future__ import annotations

import codecs
from typing import Any

from pgoutput_fast.documents import parsed_json

__all__ = ["CODECS", "NAME_BYTES", "has_form", "read_json", "read_name", "to_utf8"]

CODECS = {
    **{f"WIN{page}": f"cp{page}" for page in (1250, 1251, 1252, 1253, 1254, 1255, 1257, 1258, 874)},
    **{
        "LATIN3": "iso8859-3",
        "ISO_8859_6": "iso8859-6",
        "ISO_8859_7": "iso8859-7",
        "ISO_8859_8": "iso8859-8",
    },
}
"""{encoding of a database: codec of Python}: where a byte may lack a form, and Python converts all others as PostgreSQL
does. That excludes encodings with several bytes per character: for some of these, the two differ."""

# Bytes from here on begin a character of UTF-8. So two of them, each of them alone no character, could look like one.
_FIRST_LEADING = 0xC0
_NEVER_UTF8 = "\udcff"
# What `surrogateescape` makes of bytes without a form, and their escapes in a string of JSON.
_IN_JSON = {0xDC00 + byte: f"\\\\x{byte:x}" for byte in range(0x80, 0x100)}


def _keep(problem: UnicodeError) -> tuple[str, int]:
    """An error handler: keeps bytes without a form as they are, and makes sure that the result is not UTF-8."""
    assert isinstance(problem, UnicodeDecodeError)
    kept = problem.object[problem.start : problem.end]
    return "".join(
        f"{_NEVER_UTF8 if byte >= _FIRST_LEADING else ''}{chr(0xDC00 + byte)}" for byte in kept
    ), problem.end


codecs.register_error("pgoutput_fast.keep", _keep)


def to_utf8(text: bytes, codec: str) -> bytes:
    r"""A text in UTF-8. A byte without a form stays as it is; then the result is not valid UTF-8.

    >>> to_utf8(b"caf\xe9 \x81", "cp1252")
    b'caf\xc3\xa9 \x81'
    """
    if text.isascii():
        return text
    return text.decode(codec, "pgoutput_fast.keep").encode("utf-8", "surrogateescape")


_KEPT = ", ".join(f"'{name}'" for name in ("SQL_ASCII", *CODECS))

NAME_BYTES = f"""pg_catalog.convert_to({{}}, (CASE
    WHEN pg_catalog.getdatabaseencoding() OPERATOR(pg_catalog.=) ANY (ARRAY[{_KEPT}]::pg_catalog.name[])
    THEN pg_catalog.getdatabaseencoding() ELSE 'UTF8' END)::pg_catalog.name)"""
"""An SQL expression for the bytes of a text, which the server always can send, as `read_name` reads them."""


def read_name(text: bytes, encoding: str) -> str:
    r"""A text out of `NAME_BYTES`, with an escape such as \xe9 for each byte without a form.

    Args:
        text: the bytes.
        encoding: of the database, as `getdatabaseencoding()` says it.

    >>> read_name(b"caf\xe9 \x81", "WIN1252"), read_name(b"caf\xe9", "SQL_ASCII")
    ('café \\x81', 'caf\\xe9')
    """
    return bytes(text).decode(CODECS.get(encoding, "utf-8"), "backslashreplace")


def read_json(text: bytes, encoding: str) -> Any:
    """A JSON document out of `NAME_BYTES`, whose names have such escapes.

    Raises:
        ValueError: if it is no JSON.
    """
    return parsed_json(
        bytes(text).decode(CODECS.get(encoding, "utf-8"), "surrogateescape").translate(_IN_JSON)
    )


def has_form(text: bytes, encoding: str) -> bool:
    """Whether each byte of a text out of `NAME_BYTES` has a form."""
    try:
        bytes(text).decode(CODECS.get(encoding, "utf-8"))
    except UnicodeDecodeError:
        return False
    return True
