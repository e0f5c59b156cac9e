"""Catalogs of Iceberg tables: how they are opened, and which of their errors may pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qs, urlencode

from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.damaged import first_line
from pgoutput_fast.tables.errors import CatalogAwayError

__all__ = ["CATALOG", "NAME", "asked", "open_catalog"]

CATALOG = "_catalog.db"
"""The catalog of a local target: an SQLite file."""
NAME = "pgoutput_fast"
"""The catalog's name. SQL catalogs store it with every table."""
# How long a commit waits for other users of a catalog in a file: the tables that other threads load, or programs. The
# default is 5 seconds, and then the error "database is locked".
_FILE = {"timeout": 60}
# As sessions with the server of a slot: a cut connection is detected within half a minute.
_SERVER = {
    "connect_timeout": 20,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
}
# For the URLs of SQLAlchemy.
_LIMITS: Mapping[str, Mapping[str, int]] = {
    **dict.fromkeys(("sqlite", "sqlite+pysqlite"), _FILE),
    **dict.fromkeys(("postgresql", "postgresql+psycopg2", "postgresql+psycopg"), _SERVER),
}
# For REST.
_ANSWER_SECONDS = 120
# Others used a catalog in a file for longer than that.
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def open_catalog(store: Store, properties: Mapping[str, str]) -> Any:
    """Opens the catalog of a target.

    Args:
        store: the target.
        properties: for `pyiceberg.catalog.load_catalog`; `name` is the catalog's name. If they are empty, a
            local target has a catalog of its own.

    Raises:
        ImportError: if `pyiceberg` is not installed.
        CatalogAwayError: if the catalog cannot be reached.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise ImportError(
            "format='iceberg' needs pyiceberg: pip install 'pyiceberg[pyarrow,sql-sqlite]'"
        ) from None
    if properties:
        with asked():
            catalog = load_catalog(**{"name": NAME, **properties, **_with_limits(properties.get("uri", ""))})
        if hasattr(catalog, "_session"):  # of REST; pyiceberg waits for an answer indefinitely
            catalog._session.request = partial(catalog._session.request, timeout=_ANSWER_SECONDS)
        return catalog
    from sqlalchemy.engine import URL

    uri = URL.create("sqlite", database=str(store.at(CATALOG))).render_as_string()
    return load_catalog(NAME, type="sql", **_with_limits(uri))


def _with_limits(uri: str) -> dict[str, str]:
    """The URI of a catalog with `_LIMITS`, as a property. Those that it has itself take precedence."""
    scheme, query = uri.partition("://")[0], uri.partition("?")[2]
    limits = urlencode(
        {name: each for name, each in _LIMITS.get(scheme, {}).items() if name not in parse_qs(query)}
    )
    return {"uri": f"{uri}{'&' if query else '?'}{limits}"} if limits else {}


@contextmanager
def asked() -> Iterator[None]:
    """Asks a catalog in the block.

    Raises:
        CatalogAwayError: if it cannot be reached, or fails in a way that may pass. It may have done what it was asked.
    """
    try:
        yield
    except _passing() as problem:
        # Errors of SQL have that of the driver in them, without the statement and its values.
        why = getattr(problem, "orig", None) or problem
        if not _may_pass(why):
            raise
        raise CatalogAwayError(f"the Iceberg catalog failed: {first_line(why)}") from problem


@cache
def _passing() -> tuple[type[Exception], ...]:
    """The errors of catalogs that may pass, as far as their packages are installed: of REST, in SQL and in AWS Glue."""
    from pyiceberg import exceptions as rest
    from requests import exceptions as http

    found: list[type[Exception]] = [
        rest.AuthorizationExpiredError,
        rest.CommitStateUnknownException,
        rest.ServerError,
        rest.ServiceUnavailableError,
        rest.TooManyRequestsError,
        http.ChunkedEncodingError,
        http.ConnectionError,
        http.Timeout,
    ]
    with suppress(ImportError):
        from sqlalchemy import exc as sql

        found += [sql.InterfaceError, sql.OperationalError, sql.TimeoutError]
    with suppress(ImportError):
        from botocore import exceptions as aws

        found += [aws.ClientError, aws.ConnectionError, aws.CredentialRetrievalError, aws.HTTPClientError]
    return tuple(found)


def _may_pass(problem: Any) -> bool:
    """Whether an error of a class of `_passing` may pass, as far as it says more."""
    if isinstance(problem, sqlite3.Error):  # a disk does not recover by itself
        return getattr(problem, "sqlite_errorcode", 0) & 0xFF in _LOCKED
    answer = getattr(problem, "response", None)  # of AWS: a dict
    if isinstance(answer, dict) and "Error" in answer:
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or "Throttling" in answer["Error"].get("Code", "")
    return True
