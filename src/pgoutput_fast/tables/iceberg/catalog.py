"""Catalogs of Iceberg tables: how they are opened, and which of their errors may pass."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

from pgoutput_fast.storage.paths import redacted_uri
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.damaged import first_line
from pgoutput_fast.tables.errors import CatalogAwayError, CatalogError

__all__ = ["CATALOG", "NAME", "asked", "open_catalog"]

CATALOG = "_catalog.db"
"""The catalog of a local target: an SQLite file."""
NAME = "pgoutput_fast"
"""The catalog's name. SQL catalogs store it with every table."""
# How long to wait for an answer, such as for other users of a catalog in a file, or for a lock in a server.
_ANSWER_SECONDS = 60
# The same server is asked again later.
_GLUE_RETRIES, _GLUE_ATTEMPTS = "glue.max-retries", 3
# As sessions with the server of a slot: a cut connection is detected within half a minute.
_SERVER = {
    "connect_timeout": 20,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
}
# Others used a catalog in a file for longer than that.
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# SQLSTATEs of a server that is a standby now, and of transactions that took longer than a limit.
_PASSING_STATES = ("25006", "25P03", "25P04")
_PASSING_STATUSES = (408, 419, 425, 429)
_PASSING_CODES = re.compile("Throttling|OperationTimeout|RequestTimeout|RequestLimitExceeded|TooManyRequests")
# A server notices late that its client is cut, and keeps the locks of the transaction. The limits concern only the
# current one, because others may share the session through a pool.
_LIMIT_TRANSACTION = """SELECT pg_catalog.set_config(name, '{0}', true) FROM pg_catalog.pg_settings
WHERE name OPERATOR(pg_catalog.=) ANY (ARRAY['statement_timeout', 'idle_in_transaction_session_timeout'])
  AND (setting OPERATOR(pg_catalog.=) '0' OR setting::pg_catalog.int8 OPERATOR(pg_catalog.>) {0})"""
# `_limited` changes modules of pyiceberg.
_opening = threading.Lock()


def open_catalog(store: Store, properties: Mapping[str, str]) -> Any:
    """Opens the catalog of a target.

    Args:
        store: the target.
        properties: for `pyiceberg.catalog.load_catalog`; `name` is the catalog's name. If they are empty, a
            local target has a catalog of its own.

    Raises:
        ImportError: if `pyiceberg` is not installed.
        CatalogAwayError: if the catalog cannot be reached.
        CatalogError: if it is in SQL, and refuses.
        ValueError: if the properties are wrong.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise ImportError(
            "format='iceberg' needs pyiceberg: pip install 'pyiceberg[pyarrow,sql-sqlite]'"
        ) from None
    if not properties:
        from sqlalchemy.engine import URL

        uri = URL.create("sqlite", database=str(store.at(CATALOG))).render_as_string()
        properties = {"type": "sql", "uri": uri}
    given: dict[str, Any] = {"name": NAME, **properties}
    given[_GLUE_RETRIES] = int(
        given.get(_GLUE_RETRIES, _GLUE_ATTEMPTS)
    )  # boto3 takes no text, as of a command line
    with asked(), _limited(str(given.get("type", "")).lower()):
        try:
            return load_catalog(**given)
        except ValueError as problem:
            uri = properties.get("uri", "")
            if not uri or uri not in str(problem):
                raise
            raise ValueError(str(problem).replace(uri, redacted_uri(uri))) from None


@contextmanager
def _limited(type: str) -> Iterator[None]:
    """Gives the catalogs that are opened in the block limits: pyiceberg has none, and would wait indefinitely.

    Args:
        type: their type, in pyiceberg's words; empty if unknown.
    """
    changed = []
    with _opening:
        for known, name, limited in (
            ("rest", "Session", _limited_session),
            ("sql", "create_engine", _limited_engine),
        ):
            if type not in ("", known):
                continue
            with suppress(ImportError):
                found = import_module(f"pyiceberg.catalog.{known}")
                changed.append((found, name, getattr(found, name)))
                setattr(found, name, limited)
        try:
            yield
        finally:
            for found, name, before in changed:
                setattr(found, name, before)


def _limited_session() -> Any:
    """A session of REST."""
    from requests import Session

    class Limited(Session):
        def request(self, *given: Any, **more: Any) -> Any:
            return super().request(*given, **{"timeout": _ANSWER_SECONDS, **more})

    return Limited()


def _limited_engine(*given: Any, **more: Any) -> Any:
    """An engine of SQL. The limits that its URL has take precedence."""
    from sqlalchemy import create_engine, event

    def limit_connection(dialect: Any, _record: Any, _given: Any, parameters: dict[str, Any]) -> None:
        if dialect.driver == "pysqlite":  # the default is 5 seconds, and then the error "database is locked"
            parameters.setdefault("timeout", _ANSWER_SECONDS)
        elif dialect.driver in ("psycopg", "psycopg2"):
            for name, value in _SERVER.items():
                parameters.setdefault(name, value)

    def limit_transaction(connection: Any) -> None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(_LIMIT_TRANSACTION.format(_ANSWER_SECONDS * 1000))

    engine = create_engine(*given, **more)
    event.listen(engine, "do_connect", limit_connection)
    event.listen(engine, "begin", limit_transaction)
    return engine


@contextmanager
def asked() -> Iterator[None]:
    """Asks a catalog in the block.

    Raises:
        CatalogAwayError: if it cannot be reached, or fails in a way that may pass. It may have done what it was asked.
        CatalogError: if it is in SQL, and fails in another way.
    """
    try:
        yield
    except _passing() as problem:
        # Errors of SQL have that of the driver in them, without the statement and its values.
        why = getattr(problem, "orig", None) or problem
        message = f"the Iceberg catalog failed: {first_line(why)}"
        if _may_pass(problem, why):
            raise CatalogAwayError(message) from problem
        if why is not problem:
            raise CatalogError(message) from problem
        raise


@cache
def _passing() -> tuple[type[Exception], ...]:
    """The errors of catalogs that may pass, as far as their packages are installed: of REST, in SQL and in AWS Glue."""
    from pyiceberg import exceptions as rest
    from requests import exceptions as http

    found: list[type[Exception]] = [
        rest.RESTError,
        http.ChunkedEncodingError,
        http.ConnectionError,
        http.Timeout,
    ]
    with suppress(ImportError):
        from sqlalchemy import exc as sql

        found += [sql.DBAPIError, sql.TimeoutError]
    with suppress(ImportError):
        from botocore import exceptions as aws

        found += [aws.ClientError, aws.ConnectionError, aws.CredentialRetrievalError, aws.HTTPClientError]
    return tuple(found)


def _may_pass(problem: BaseException, why: Any) -> bool:
    """Whether an error of a class of `_passing` may pass, as far as it says more."""
    from pyiceberg.exceptions import CommitStateUnknownException, RESTError

    if isinstance(why, sqlite3.Error):  # a disk does not recover by itself
        return getattr(why, "sqlite_errorcode", 0) & 0xFF in _LOCKED
    if why is not problem:
        return _may_pass_in_sql(problem, why)
    if isinstance(problem, RESTError):
        answer = getattr(problem.__cause__, "response", None)
        status = getattr(answer, "status_code", 0)
        return (
            isinstance(problem, CommitStateUnknownException) or status in _PASSING_STATUSES or status >= 500
        )
    answer = getattr(problem, "response", None)  # of AWS: a dict
    if isinstance(answer, dict) and "Error" in answer:
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or _PASSING_CODES.search(answer["Error"].get("Code", "")) is not None
    return True


def _may_pass_in_sql(problem: Any, why: Any) -> bool:
    from sqlalchemy import exc as sql

    if problem.connection_invalidated or isinstance(problem, sql.InterfaceError | sql.OperationalError):
        return True
    state = getattr(why, "sqlstate", None) or getattr(why, "pgcode", None)
    # psycopg2 reports some lost connections without a more specific class.
    return state in _PASSING_STATES or (state is None and type(problem) is sql.DatabaseError)
