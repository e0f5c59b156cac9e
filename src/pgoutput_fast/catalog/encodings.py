"""Database encodings in which some bytes are no character, and so have no UTF-8 form.

PostgreSQL stores such a byte, but cannot send it to a UTF-8 session. Python converts the texts here instead.
"""

from __future__ import annotations

import codecs
from typing import Any

from pgoutput_fast.base.documents import parsed_json

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
"""{encoding of a database: codec of Python}, for encodings with such bytes.

Python converts all other bytes like PostgreSQL. That excludes multibyte encodings, in some of which the two differ.
"""

# Bytes from here on begin a UTF-8 character, so consecutive bytes without a form could look like one.
_FIRST_LEADING = 0xC0
_NEVER_UTF8 = "\udcff"
# The code points of `surrogateescape` for bytes without a form, and their escapes in a JSON string.
_IN_JSON = {0xDC00 + byte: f"\\\\x{byte:x}" for byte in range(0x80, 0x100)}


def _keep(problem: UnicodeError) -> tuple[str, int]:
    """An error handler that keeps bytes without a form and ensures that the result is not valid UTF-8."""
    assert isinstance(problem, UnicodeDecodeError)
    kept = problem.object[problem.start : problem.end]
    return "".join(
        f"{_NEVER_UTF8 if byte >= _FIRST_LEADING else ''}{chr(0xDC00 + byte)}" for byte in kept
    ), problem.end


codecs.register_error("pgoutput_fast.keep", _keep)


def to_utf8(text: bytes, codec: str) -> bytes:
    r"""A text in UTF-8. A byte without a form is kept; the result is then not valid UTF-8.

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
"""An SQL expression for the bytes of a text, which the server can always send, for `read_name`."""


def read_name(text: bytes, encoding: str) -> str:
    r"""A text from `NAME_BYTES`, with escapes such as \xe9 for bytes without a form.

    Args:
        text: the bytes.
        encoding: of the database, from `getdatabaseencoding()`.

    >>> read_name(b"caf\xe9 \x81", "WIN1252"), read_name(b"caf\xe9", "SQL_ASCII")
    ('café \\x81', 'caf\\xe9')
    """
    return bytes(text).decode(CODECS.get(encoding, "utf-8"), "backslashreplace")


def read_json(text: bytes, encoding: str) -> Any:
    """A JSON document from `NAME_BYTES`, with such escapes in names.

    Raises:
        ValueError: if it is not JSON.
    """
    return parsed_json(
        bytes(text).decode(CODECS.get(encoding, "utf-8"), "surrogateescape").translate(_IN_JSON)
    )


def has_form(text: bytes, encoding: str) -> bool:
    """Whether all bytes of a text from `NAME_BYTES` have a form."""
    try:
        bytes(text).decode(CODECS.get(encoding, "utf-8"))
    except UnicodeDecodeError:
        return False
    return True
