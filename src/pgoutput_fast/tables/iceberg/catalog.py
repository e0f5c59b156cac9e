"""Catalogs of Iceberg tables: how they are opened, and which of their errors may pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

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
# As sessions with the server of a slot: a cut connection is detected within half a minute.
_SERVER = {
    "connect_timeout": 20,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
}
# For the URLs of SQLAlchemy. The default of SQLite is 5 seconds, and then the error "database is locked".
_LIMITS: Mapping[str, Mapping[str, int]] = {
    **{name: {"timeout": _ANSWER_SECONDS} for name in ("sqlite", "sqlite+pysqlite")},
    **dict.fromkeys(("postgresql", "postgresql+psycopg2", "postgresql+psycopg"), _SERVER),
}
# SQLSTATE of a server that is a standby now.
_READ_ONLY = "25006"
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
    if not properties:
        from sqlalchemy.engine import URL

        uri = URL.create("sqlite", database=str(store.at(CATALOG))).render_as_string()
        properties = {"name": NAME, "type": "sql", "uri": uri}
    with asked():
        catalog = load_catalog(**{"name": NAME, **properties, **_with_limits(properties.get("uri", ""))})
    if hasattr(catalog, "_session"):  # of REST; pyiceberg waits for an answer indefinitely
        catalog._session.request = partial(catalog._session.request, timeout=_ANSWER_SECONDS)
    engine = getattr(catalog, "engine", None)  # of SQL
    if engine is not None and engine.dialect.name == "postgresql":
        from sqlalchemy import event

        event.listen(engine, "begin", _limit_transaction)
    return catalog


def _with_limits(uri: str) -> dict[str, str]:
    """The URI of a catalog in SQL with limits of its driver, as a property. Those that it has take precedence."""
    limits = _LIMITS.get(uri.partition("://")[0])
    if limits is None:
        return {}
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    url = url.update_query_dict({name: str(each) for name, each in limits.items() if name not in url.query})
    return {"uri": url.render_as_string(hide_password=False)}


def _limit_transaction(connection: Any) -> None:
    """Limits the current transaction, not the session, which may be shared through a pool.

    A server does not notice soon that its client is cut, and keeps the locks of the transaction.
    """
    limits = ("statement_timeout", "idle_in_transaction_session_timeout")
    connection.exec_driver_sql("; ".join(f"SET LOCAL {each} = '{_ANSWER_SECONDS}s'" for each in limits))


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

        found += [sql.DBAPIError, sql.TimeoutError]
    with suppress(ImportError):
        from botocore import exceptions as aws

        found += [aws.ClientError, aws.ConnectionError, aws.CredentialRetrievalError, aws.HTTPClientError]
    return tuple(found)


def _may_pass(problem: BaseException, why: Any) -> bool:
    """Whether an error of a class of `_passing` may pass, as far as it says more."""
    if isinstance(why, sqlite3.Error):  # a disk does not recover by itself
        return getattr(why, "sqlite_errorcode", 0) & 0xFF in _LOCKED
    if why is not problem:
        from sqlalchemy import exc as sql

        state = getattr(why, "sqlstate", None) or getattr(why, "pgcode", None)
        return isinstance(problem, sql.InterfaceError | sql.OperationalError) or state == _READ_ONLY
    answer = getattr(problem, "response", None)  # of AWS: a dict
    if isinstance(answer, dict) and "Error" in answer:
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or "Throttling" in answer["Error"].get("Code", "")
    return True
