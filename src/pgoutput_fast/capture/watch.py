"""Checks that the publications exist, and stay the same, while a capture runs. Without one the server sends no change.

A server decodes each change with the catalogs as of the time of the change. If a publication did not exist then,
PostgreSQL up to 17 ends the stream with an error, on every retry. From 18 on the server sends a warning and skips the
changes. So the capture makes two checks before it confirms a position. The warnings and errors in the stream are exact:
they precede everything that follows the change. A query of the catalogs detects a publication that is missing or is a
different one, even without changes.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psycopg2.errors

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.capture.errors import (
    CANNOT_GO_ON,
    NEW_SLOT,
    START_OVER,
    CaptureError,
    OwnEncodingError,
    SilentError,
)
from pgoutput_fast.catalog.encodings import NAME_BYTES, read_name
from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.postgres.copy_stream import CopyLink
from pgoutput_fast.postgres.refusals import converted_here, find_unsendable
from pgoutput_fast.postgres.session import codec_of, connect
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["Watch"]

_log = logging.getLogger("pgoutput_fast.capture")

# How often to query the catalogs while there is nothing to confirm.
_CHECK_SECONDS = 5.0
_MOST_BYTES = 1 << 20
# OBJECT_NOT_IN_PREREQUISITE_STATE: with "skipped loading publication", 18 and later report that they skip changes.
_SKIPPED = "55000"

# The text is hexadecimal, because COPY doubles each backslash. Options come with their names, because later versions
# have more of them. Publications may have many tables and schemas, so a number represents them. It changes with each
# row that is added, altered or removed.
_LOOK = """
COPY (SELECT pg_catalog.encode(pg_catalog.convert_to(pg_catalog.json_build_object(
    'name', p.pubname, 'oid', p.oid::pg_catalog.int8, 'options', pg_catalog.to_json(p),
    'lists', ({lists}))::pg_catalog.text, 'UTF8'), 'hex')
FROM pg_catalog.pg_publication p WHERE p.pubname OPERATOR(pg_catalog.=) ANY (%(names)s::pg_catalog.name[])) TO STDOUT
"""
_LIST = """
SELECT pg_catalog.json_build_array(pg_catalog.count(*), pg_catalog.sum(pg_catalog.hashtext(pg_catalog.concat(
    r.{key}::pg_catalog.text, ' ', r.xmin::pg_catalog.text))::pg_catalog.int8))
FROM pg_catalog.{catalog} r WHERE r.{publication} OPERATOR(pg_catalog.=) p.oid
"""
_TABLES = _LIST.format(catalog="pg_publication_rel", key="prrelid", publication="prpubid")
_SCHEMAS = _LIST.format(catalog="pg_publication_namespace", key="pnnspid", publication="pnpubid")

# The names of the tables and schemas, for log lines.
_NAMES = f"""
COPY (SELECT pg_catalog.encode({NAME_BYTES.format("pg_catalog.format('%%I.%%I', n.nspname, c.relname)")}, 'hex')
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid OPERATOR(pg_catalog.=) p.oid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE p.pubname OPERATOR(pg_catalog.=) %(name)s{{schemas}}) TO STDOUT
"""
_SCHEMA_NAMES = f"""
UNION ALL SELECT pg_catalog.encode({NAME_BYTES.format("pg_catalog.format('schema %%I', n.nspname)")}, 'hex')
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_namespace r ON r.pnpubid OPERATOR(pg_catalog.=) p.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) r.pnnspid
WHERE p.pubname OPERATOR(pg_catalog.=) %(name)s
"""


@dataclass(frozen=True)
class _Published:
    """A publication as of one query."""

    oid: int
    options: Mapping[str, Any]
    lists: Any
    names: frozenset[str]


class Watch:
    """Checks publications through a separate session. A context manager, entered by each connection of a capture.

    It remembers the publications from one connection to the next.

    Args:
        dsn: connection string of the database.
        publications: their names.
        slot: the slot's name, for errors.
        silent_seconds: a server that does not answer a small query for this time counts as silent; 0 for never.

    Attributes:
        own_encoding: whether the next connection requests texts in the encoding of the database, because the server
            could not send one in UTF-8.
    """

    own_encoding = False

    def __init__(self, dsn: str, publications: Sequence[str], slot: str, silent_seconds: float = 0.0) -> None:
        self._dsn = dsn
        self._names = tuple(dict.fromkeys(publications))
        self._slot = slot
        self._silent_seconds = silent_seconds
        self._known: dict[str, _Published] = {}
        self._connection: Any = None
        self._encoding = "UTF8"
        self._codec: str | None = None
        self._next = 0.0
        self._confirmed_lsn = 0

    def __enter__(self) -> Watch:
        self._connection = connect(self._dsn)
        self._encoding = self._connection.get_parameter_status("server_encoding")
        self._codec = codec_of(self._connection)
        try:
            self.check()
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    @property
    def is_due(self) -> bool:
        """Whether the last check was some seconds ago."""
        return time.monotonic() >= self._next

    def set_confirmed(self, lsn: int) -> None:
        """Sets the confirmed position of the slot, for errors. It never decreases."""
        self._confirmed_lsn = max(self._confirmed_lsn, lsn)

    def check(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Checks that all publications still exist and are the same. Logs other changes of them.

        Success means that they existed for everything that the server sent before this call: the capture would see a
        transaction that dropped one.

        Args:
            meanwhile: called repeatedly until the server answers.

        Raises:
            CaptureError: if a publication is missing, or was dropped and created again.
            SilentError: if the server does not answer.
            psycopg2.Error: if the server cannot be queried.
        """
        lists = "SELECT pg_catalog.json_build_array(({}), ({}))" if self._has_schemas else "SELECT ({})"
        query = _LOOK.format(lists=lists.format(_TABLES, _SCHEMAS))
        rows = [parsed_json(row) for row in self._copy(query, {"names": list(self._names)}, meanwhile)]
        found = {row["name"]: row for row in rows}
        for name in self._names:
            self._compare(name, found.get(name), meanwhile)
        self._next = time.monotonic() + _CHECK_SECONDS

    def _compare(self, name: str, row: Mapping[str, Any] | None, meanwhile: Callable[[], object]) -> None:
        known = self._known.get(name)
        if row is None:
            was = f" (it had oid {known.oid})" if known is not None else ""
            raise CaptureError(
                f"publication {name} does not exist{was}, so the server sends no changes of its tables. "
                f"{self._confirmed()}. If no table changes until then, create the publication again as it was "
                f"(CREATE PUBLICATION {quote_identifier(name)} ...), and run the capture again: it continues. "
                f"Otherwise this slot cannot give the changes in between. {NEW_SLOT}"
            )
        if known is not None and known.oid != row["oid"]:
            raise CaptureError(
                f"somebody dropped publication {name} and created it again (its oid was {known.oid} and is "
                f"{row['oid']}). {self._confirmed()}. Run the capture again. If nothing changed while there was no "
                "publication, the capture continues. Otherwise it says so, and this slot cannot give the changes in "
                f"between. {NEW_SLOT}"
            )
        options = {
            key: row["options"][key] for key in sorted(row["options"]) if key not in ("oid", "pubowner")
        }
        if known is not None and (known.options, known.lists) == (options, row["lists"]):
            return
        listed = self._copy(self._names_query, {"name": name}, meanwhile)
        names = frozenset(read_name(each, self._encoding) for each in listed)
        now = self._known[name] = _Published(row["oid"], options, row["lists"], names)
        if known is not None:
            _log.warning(
                "somebody altered publication %s: %s. The server sends later changes accordingly",
                name,
                _altered(known, now),
            )

    def on_warning(self, code: str, text: str) -> None:
        """Processes a warning that the server sends in the middle of a stream.

        Raises:
            CaptureError: if the server skipped changes, because a publication did not exist at the time of the changes.
        """
        if code == _SKIPPED and self._names_publication(text):
            raise CaptureError(self._skipped_text(text))
        _log.warning("the server says: %s", text)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Explains the server's error if the stream in the block ends because the server cannot send a change.

        The cause is a missing publication, or a text without a representation in UTF-8.

        Raises:
            OwnEncodingError: instead of the server's error, if the next connection can get the change.
            CaptureError: instead of the server's error, if the slot can never continue.
        """
        try:
            yield
        except psycopg2.errors.UndefinedObject as problem:
            # The server names the plugin only in errors of decoding.
            message = str(problem).strip()
            if "pgoutput" in message and self._names_publication(message):
                raise CaptureError(self._skipped_text(message.splitlines()[0])) from problem
            raise
        except psycopg2.errors.UntranslatableCharacter:
            # The server's error contains a part of the value.
            if self._codec is not None and not self.own_encoding:
                self.own_encoding = True
                raise OwnEncodingError(converted_here(f"a change of slot {self._slot}")) from None
            raise CaptureError(
                f"slot {self._slot} cannot go on: a changed row has a character without a form in UTF-8, so the server "
                f"cannot send the change. {self._confirmed()}. {CANNOT_GO_ON[1]}: the WAL keeps the value after you "
                f"fix the row. {find_unsendable('the tables')}. Fix them. {START_OVER}"
            ) from None

    def _names_publication(self, message: str) -> bool:
        """Whether the server names one of the publications. A session's texts may be in the database's encoding."""
        names = [
            name.encode(self._codec or "utf-8", "replace").decode("utf-8", "replace") for name in self._names
        ]
        return any(name in message for name in (*self._names, *names))

    def _skipped_text(self, message: str) -> str:
        return (
            f"slot {self._slot} {CANNOT_GO_ON[0]} (the server says: {message}). "
            "The slot is older than the publication, or somebody dropped the publication in between. "
            f"{self._confirmed()}. This slot cannot give those changes or later ones, even if the publication exists "
            f"now. {NEW_SLOT}"
        )

    def _confirmed(self) -> str:
        return (
            f"The capture confirmed slot {self._slot} up to {format_lsn(self._confirmed_lsn)} and no further"
        )

    @property
    def _has_schemas(self) -> bool:
        return bool(self._connection.server_version >= 150000)

    @property
    def _names_query(self) -> str:
        return _NAMES.format(schemas=_SCHEMA_NAMES if self._has_schemas else "")

    def _copy(self, query: str, arguments: Mapping[str, Any], meanwhile: Callable[[], object]) -> list[bytes]:
        """Returns the rows of a query. Unlike psycopg2, this does not wait forever for a server that hangs."""
        deadline = time.monotonic() + (self._silent_seconds or math.inf)

        def keep_waiting() -> bool:
            meanwhile()
            return time.monotonic() < deadline

        link = CopyLink(self._connection)
        with self._connection.cursor() as cursor:
            text = cursor.mogrify(query, arguments).decode()
        rows: list[bytes] = []
        begun = link.begin(text, keep_waiting)
        while begun and keep_waiting():
            came = link.take(_MOST_BYTES, 0.2, 0.0)
            if came is None:
                return rows
            rows += [bytes.fromhex(row.decode()) for row in came.to_pylist()]
        raise SilentError(self._silent_seconds)


def _altered(was: _Published, now: _Published) -> str:
    """Describes the changes of a publication for a log line."""
    parts = [
        f"{option} was {was.options.get(option)} and is {value}"
        for option, value in now.options.items()
        if value != was.options.get(option)
    ]
    for what, names in (
        ("now also published", now.names - was.names),
        ("no longer published", was.names - now.names),
    ):
        if names:
            few = sorted(names)[:10]
            parts.append(f"{what}: {', '.join(few)}{', ...' if len(names) > len(few) else ''}")
    return "; ".join(parts) or "columns or row filters of its tables"
