"""Whether publications are there, and the same, for as long as a capture runs: what commits without one is not sent.

A server decodes each change as the catalogs were when it was made. A publication that was not there then is an error up
to PostgreSQL 17, which ends the stream again and again; from 18 on it is a warning, and the changes are passed over. So
two guards stand before each acknowledgement. The stream's own warnings and errors are exact: they come before anything
that lies behind the change. A look at the catalogs finds a publication that is gone or is another one, also while
nothing changes.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import psycopg2.errors

from pgoutput_fast.capture.errors import CaptureError, SilentError
from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.postgres.copy_stream import CopyLink
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.protocol.lsn import format_lsn

__all__ = ["Watch"]

_log = logging.getLogger("pgoutput_fast.capture")

# So often the catalogs are looked at while there is nothing to acknowledge.
_LOOK_SECONDS = 5.0
_MOST_BYTES = 1 << 20
# OBJECT_NOT_IN_PREREQUISITE_STATE: "skipped loading publication", by which 18 and later pass changes over.
_SKIPPED = "55000"

# In hexadecimal, for COPY prints backslashes twice. Options by their names, as later versions have more. Tables and
# schemas are many: a number that becomes another with each row that is made, altered or removed.
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

# Which they are, for a person.
_NAMES = """
COPY (SELECT pg_catalog.encode(pg_catalog.convert_to(pg_catalog.format('%%I.%%I', n.nspname, c.relname), 'UTF8'), 'hex')
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid OPERATOR(pg_catalog.=) p.oid
JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE p.pubname OPERATOR(pg_catalog.=) %(name)s{schemas}) TO STDOUT
"""
_SCHEMA_NAMES = """
UNION ALL SELECT pg_catalog.encode(pg_catalog.convert_to(pg_catalog.format('schema %%I', n.nspname), 'UTF8'), 'hex')
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_namespace r ON r.pnpubid OPERATOR(pg_catalog.=) p.oid
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) r.pnnspid
WHERE p.pubname OPERATOR(pg_catalog.=) %(name)s
"""

_NEW_SLOT = (
    "drop the slot, make the publication first and then a new slot, load the tables again, and capture into another "
    "directory"
)


@dataclass(frozen=True)
class _Published:
    """A publication as a look found it."""

    oid: int
    options: Mapping[str, Any]
    lists: Any
    names: frozenset[str]


class Watch:
    """Looks at publications through a session of its own. A context manager for the length of a connection; what it
    knows of them stays from one to the next.

    Args:
        dsn: of the database.
        publications: their names.
        slot: the slot's name, for errors.
        silent_seconds: a server that does not answer a small query so long does not answer; 0 for never.

    Attributes:
        stands: up to where the slot was let go of, for errors.
    """

    def __init__(self, dsn: str, publications: Sequence[str], slot: str, silent_seconds: float = 0.0) -> None:
        self._dsn = dsn
        self._names = tuple(dict.fromkeys(publications))
        self._slot = slot
        self._silent_seconds = silent_seconds
        self._known: dict[str, _Published] = {}
        self._connection: Any = None
        self._next = 0.0
        self.stands = 0

    def __enter__(self) -> Watch:
        self._connection = connect(self._dsn)
        try:
            self.look()
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
        """Whether the last look was some seconds ago."""
        return time.monotonic() >= self._next

    def look(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Looks whether all publications are still there, and the same. What else became of them is logged.

        If they are, they were there for all that the server had sent before this was called: a transaction that dropped
        one would be seen.

        Args:
            meanwhile: called now and then until the server answers.

        Raises:
            CaptureError: if one is gone, or was dropped and made again.
            SilentError: if the server does not answer.
            psycopg2.Error: if it cannot be asked.
        """
        lists = "SELECT pg_catalog.json_build_array(({}), ({}))" if self._has_schemas else "SELECT ({})"
        query = _LOOK.format(lists=lists.format(_TABLES, _SCHEMAS))
        rows = [json.loads(row) for row in self._copy(query, {"names": list(self._names)}, meanwhile)]
        found = {row["name"]: row for row in rows}
        for name in self._names:
            self._compare(name, found.get(name), meanwhile)
        self._next = time.monotonic() + _LOOK_SECONDS

    def _compare(self, name: str, row: Mapping[str, Any] | None, meanwhile: Callable[[], object]) -> None:
        known = self._known.get(name)
        if row is None:
            was = f" (it had oid {known.oid})" if known is not None else ""
            raise CaptureError(
                f"publication {name} is not there{was}: the server sends nothing by it. {self._stay()}. If no table is "
                f"changed until then, make it again as it was (CREATE PUBLICATION {quote_identifier(name)} ...), and "
                f"run the capture again, which goes on. Else this slot cannot give what changed meanwhile: {_NEW_SLOT}"
            )
        if known is not None and known.oid != row["oid"]:
            raise CaptureError(
                f"publication {name} was dropped and made again (its oid was {known.oid} and is {row['oid']}). "
                f"{self._stay()}. Run the capture again: if nothing was changed while the publication was not there, "
                f"it goes on. Else it says so, and this slot cannot give what changed meanwhile: {_NEW_SLOT}"
            )
        options = {
            key: row["options"][key] for key in sorted(row["options"]) if key not in ("oid", "pubowner")
        }
        if known is not None and (known.options, known.lists) == (options, row["lists"]):
            return
        names = frozenset(self._copy(self._names_query, {"name": name}, meanwhile))
        now = self._known[name] = _Published(row["oid"], options, row["lists"], names)
        if known is not None:
            _log.warning(
                "publication %s was altered: %s. What changes from now on is sent so",
                name,
                _altered(known, now),
            )

    def hear(self, code: str, text: str) -> None:
        """Takes a warning that the server sends in the middle of a stream.

        Raises:
            CaptureError: if it says that changes were passed over, for a publication was not there when they were made.
        """
        if code == _SKIPPED and any(name in text for name in self._names):
            raise CaptureError(self._missed(text))
        _log.warning("the server says: %s", text)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """For the length of a stream: says what it means if it ends because a publication was not there.

        Raises:
            CaptureError: instead of that error of the server.
        """
        try:
            yield
        except psycopg2.errors.UndefinedObject as problem:
            # The server names the plugin where it was decoding, and nowhere else.
            said = str(problem).strip()
            if "pgoutput" in said and any(name in said for name in self._names):
                raise CaptureError(self._missed(said.splitlines()[0])) from problem
            raise

    def _missed(self, said: str) -> str:
        return (
            f"a publication was not there when changes were made that slot {self._slot} holds (the server: {said}). "
            "The slot is older than the publication, or that was dropped meanwhile. "
            f"{self._stay()}, and this slot cannot give those changes, nor what comes behind them, even if the "
            f"publication is there now: {_NEW_SLOT}"
        )

    def _stay(self) -> str:
        return f"Nothing was acknowledged beyond {format_lsn(self.stands)}, where slot {self._slot} stays"

    @property
    def _has_schemas(self) -> bool:
        return bool(self._connection.server_version >= 150000)

    @property
    def _names_query(self) -> str:
        return _NAMES.format(schemas=_SCHEMA_NAMES if self._has_schemas else "")

    def _copy(self, query: str, arguments: Mapping[str, Any], meanwhile: Callable[[], object]) -> list[str]:
        """Rows of a query, without waiting for a server that hangs as psycopg2 would."""
        deadline = time.monotonic() + (self._silent_seconds or math.inf)

        def wanted() -> bool:
            meanwhile()
            return time.monotonic() < deadline

        link = CopyLink(self._connection)
        with self._connection.cursor() as cursor:
            text = cursor.mogrify(query, arguments).decode()
        rows: list[str] = []
        begun = link.begin(text, wanted)
        while begun and wanted():
            came = link.take(_MOST_BYTES, 0.2, 0.0)
            if came is None:
                return rows
            rows += [bytes.fromhex(row.decode()).decode() for row in came.to_pylist()]
        raise SilentError(f"the server has answered nothing for {self._silent_seconds:.0f} s")


def _altered(was: _Published, now: _Published) -> str:
    """What became of a publication, for a person."""
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
