"""Sessions with a server, and the server's properties.

The text form of values depends on a session's settings, so these are pinned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg2
import psycopg2.extensions

from pgoutput_fast.catalog.encodings import CODECS
from pgoutput_fast.catalog.identifiers import quote_identifier
from pgoutput_fast.postgres.errors import CaptureError
from pgoutput_fast.postgres.interruptible import ReplicationSession, Session, run_interruptible
from pgoutput_fast.postgres.passwords import Dsn
from pgoutput_fast.protocol.lsn import Lsn, parse_lsn

__all__ = [
    "FLUSHED_LSN",
    "PINS",
    "DsnError",
    "Server",
    "codec_of",
    "connect",
    "current_lsn",
    "describe_database",
    "position_of",
    "read_flushed_position",
    "read_position",
    "read_server",
    "session",
    "with_identifier",
]

PINS = {
    # A global timeout must not end a session that waits for changes or reads for long, nor the statement of the pins.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
    # From PostgreSQL 18 on, the server reports a missing publication only with a warning.
    "client_min_messages": "warning",
}
"""The settings of sessions that decode, {name: value}. They make the text form of values unambiguous."""

# No session writes to tables, so code planted by others cannot write either. This is set after the connection is made:
# target_session_attrs=read-write would reject a read-only session.
_READ_ONLY = "SET default_transaction_read_only = on"

# Timeouts of later versions; earlier versions refuse a session with them. Name -> first version.
_LATER_TIMEOUTS = {"idle_session_timeout": 140000, "transaction_timeout": 170000}

# The OS detects a cut connection within a minute. Keepalives run only while no sent data wait for an acknowledgement. A
# walsender's client sends its position repeatedly, so data always wait, and the user timeout applies.
_CUT = {"keepalives": 1, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 4}
_UNACKNOWLEDGED_MS = 30_000
# A network that loses all packets, or a server that accepts but never answers, must not delay the next attempt.
_CONNECT_SECONDS = 20
# libpq accepts the parameter from this version on.
_USER_TIMEOUT_LIBPQ = 120000


@dataclass(frozen=True)
class Server:
    """A server and one of its databases.

    Attributes:
        version: such as 180001 for 18.1, and 100023 for 10.23.
        system_identifier: identifier of the cluster; a copy of the cluster has the same. Empty if the user may not read
            it: see `with_identifier`.
        database: the database's name.
        in_recovery: whether the server is a standby.
        settings: the settings that matter for decoding, as `SHOW` prints them.
        user: the role of the session.
    """

    version: int
    system_identifier: str
    database: str
    in_recovery: bool
    settings: dict[str, str]
    user: str = ""

    @property
    def major(self) -> int:
        """The major version, such as 18."""
        return self.version // 10000


# The end of the WAL as a number; on a standby, of the replayed WAL. WRITTEN may be ahead of the flushed WAL, and the
# server decodes only flushed WAL.
_WAL_END = """(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
    ELSE {} END OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn)::pg_catalog.int8"""
_WRITTEN_LSN = _WAL_END.format("pg_catalog.pg_current_wal_lsn()")
FLUSHED_LSN = _WAL_END.format("pg_catalog.pg_current_wal_flush_lsn()")
"""An SQL expression for the end of the WAL that the server can decode."""


class DsnError(psycopg2.ProgrammingError, ValueError):  # type: ignore[misc]
    """A connection string that libpq cannot parse, or would misread.

    The message does not repeat any part of the string, because that may be a password.
    """


# Texts in libpq's errors -> messages without any part of the connection string.
_WRONG = (
    ('missing "="', 'a word has no "=" after it. Put a value with blanks in single quotes'),
    ("unterminated quoted string", "a quote is not closed"),
    ("forbidden value", "it has a %00"),
    ("percent-encoded", "two hexadecimal digits must follow a %. Write %25 for a % itself"),
    ("separator", "write the options after ? as name=value, with & between them"),
    ("matching", 'the address of a host has no "]" at its end'),
    ("unexpected character", "after the address of a host there is neither a port nor a path"),
    ("URI query parameter", "libpq does not know an option after ?"),
    ("connection option", "libpq does not know an option in it. Put a value with blanks in single quotes"),
)


# How URLs for Java and for SQLAlchemy begin.
_OTHER_URL = re.compile(r"\s*(jdbc:|postgres(ql)?\+\w+:)", re.IGNORECASE)
_OTHER_KIND = (
    "it is a URL for another library, such as jdbc:postgresql: of Java. libpq's begins with postgresql:// and has user "
    "and password before the host, as in postgresql://user:password@host:5432/database"
)

# Names of databases and hosts, and port numbers. A connection string in place of a database name has a =.
_HARMLESS = re.compile(r"[\w.,:/-]*")


def _parsed(dsn: str) -> dict[str, str]:
    """Parses a connection string.

    Raises:
        DsnError: if it cannot be parsed.
    """
    wrong: str | None
    try:
        given: dict[str, str] = psycopg2.extensions.parse_dsn(dsn)
    except psycopg2.ProgrammingError as problem:
        message = str(problem)
        wrong = (
            _OTHER_KIND
            if _OTHER_URL.match(dsn)
            else next(
                (what for sign, what in _WRONG if sign in message),
                "libpq's own message would repeat it",
            )
        )
    else:
        wrong = _misread(given, is_uri="://" in dsn)
    if wrong is not None:
        raise DsnError(f"the connection string (dsn) cannot be read: {wrong}")
    return given


def _misread(given: dict[str, str], *, is_uri: bool) -> str | None:
    """Returns the reason why a part of a password seems to be misread as another field, or None.

    libpq's errors would show that part.
    """
    hosts = given.get("host", "").split(",")
    ports = given.get("port", "").split(",")
    in_host = any("@" in host[1:] and not host.startswith("/") for host in hosts)
    in_database = is_uri and "@" in given.get("dbname", "") and "user" not in given
    if in_host or in_database or not all(not port or port.isdecimal() for port in ports):
        return (
            "its host or port is not valid. In the user and the password of a URI, write @ / : ? # and % as "
            "%40 %2F %3A %3F %23 and %25"
            if is_uri
            else "its host or port is not valid"
        )
    return None


def describe_database(dsn: str) -> str:
    """The displayable name and host of a connection string's database, without user, password and options.

    A string that cannot be parsed, or that has unusual characters in these parts, may have a password there: then the
    text has no part of it.

    >>> describe_database("postgresql://me:secret@db.example:5433/shop"), describe_database("password=secret")
    ('shop at db.example:5433', "libpq's default database")
    >>> describe_database("host=a,b dbname=shop"), describe_database("postgresql://me:sec/ret@db/shop")
    ('shop at a,b', 'a database')
    >>> describe_database("service=shop")
    'service shop'
    """
    try:
        given = _parsed(dsn)
    except DsnError:
        return "a database"
    name, port = given.get("dbname", ""), given.get("port", "")
    host = given.get("host") or given.get("hostaddr", "")
    if not all(map(_HARMLESS.fullmatch, (name, host, port))):
        return "a database"
    place = f"{host}{':' if host and port else ''}{port if host else f'port {port}' if port else ''}"
    if place or name:
        return f"{name or 'the default database'} at {place}" if place else name
    service = given.get("service", "")
    return f"service {service}" if service and _HARMLESS.fullmatch(service) else "libpq's default database"


def connect(
    dsn: str,
    *,
    replication: bool = False,
    values: bool = False,
    own_encoding: bool = False,
    pinned: bool = True,
    **parameters: Any,
) -> Any:
    """Returns a pinned psycopg2 connection: with autocommit, or to a logical walsender.

    Args:
        dsn: libpq's connection string or URI; a `Dsn` is asked for its password.
        replication: whether the connection uses the replication protocol.
        values: whether the server sends the values of rows as bytes. Then the text of a SQL_ASCII database arrives
            unconverted; otherwise the server would refuse to send invalid UTF-8.
        own_encoding: whether texts arrive in the encoding of the database: see `codec_of`.
        pinned: whether to pin the session's settings.
        parameters: of libpq, such as `connect_timeout` (default 20 seconds) or `tcp_user_timeout` (default 30,000 ms).
            Those in the connection string take precedence.

    Raises:
        psycopg2.OperationalError: if the server cannot be reached or refuses.
        StoppedError: as `run_interruptible`; statements of the connection raise it, too.
        DsnError: for a string that cannot be parsed, or a `Dsn` that has a password.
    """
    given = _parsed(dsn)
    if isinstance(dsn, Dsn) and "password" in given:
        raise DsnError(
            "the connection string (dsn) has a password and a function for it: leave one of them out"
        )
    cut = dict(_CUT, connect_timeout=_CONNECT_SECONDS)
    if psycopg2.extensions.libpq_version() >= _USER_TIMEOUT_LIBPQ:
        cut["tcp_user_timeout"] = _UNACKNOWLEDGED_MS
    # The default only: a service file or PGAPPNAME may have another name.
    merged = {"fallback_application_name": "pgoutput_fast", **cut, **parameters, **given}
    if pinned:
        merged["client_encoding"] = PINS["client_encoding"]
    factory = ReplicationSession if replication else Session

    def open_connection() -> Any:
        password = {"password": dsn.ask()} if isinstance(dsn, Dsn) else {}
        return psycopg2.connect(connection_factory=factory, **merged, **password)

    connection = run_interruptible(open_connection, late=lambda made: made.close())
    try:
        if not replication:
            connection.autocommit = True
        known = [name for name, since in _LATER_TIMEOUTS.items() if connection.server_version >= since]
        # Not as options of the connection, which would hide those of a service file and of PGOPTIONS.
        pins = [f"SET {name} = '{value}'" for name, value in PINS.items()] if pinned else []
        with connection.cursor() as cursor:
            cursor.execute("; ".join((*pins, _READ_ONLY, *(f"SET {name} = 0" for name in known))))
        encoding = connection.get_parameter_status("server_encoding")
        if own_encoding or (values and encoding == "SQL_ASCII"):
            # psycopg2 continues with UTF-8, also for names in statements. Its own function would allow only ASCII in
            # these.
            with connection.cursor() as cursor:
                cursor.execute(f"SET client_encoding = '{encoding}'")
    except BaseException:
        connection.close()
        raise
    return connection


def codec_of(connection: Any) -> str | None:
    """Python's codec for the database's encoding, if texts in it may lack a UTF-8 form."""
    return CODECS.get(connection.get_parameter_status("server_encoding"))


@contextmanager
def session(dsn: str, **parameters: Any) -> Iterator[Any]:
    """Yields a cursor of a pinned session that ends with the block."""
    connection = connect(dsn, **parameters)
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


_SETTINGS = (
    "wal_level", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size", "wal_sender_timeout",
    "logical_decoding_work_mem", "max_prepared_transactions", "idle_replication_slot_timeout", "server_encoding",
    "track_commit_timestamp", "max_wal_size", "effective_wal_level", "synchronous_standby_names",
    "output_plugin_libraries",
)  # fmt: skip


def read_server(cursor: Any) -> Server:
    """Returns the properties of a cursor's server.

    Raises:
        psycopg2.Error: if the server does not answer.
    """
    cursor.execute(
        "SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.pg_settings "
        "WHERE name OPERATOR(pg_catalog.=) ANY (%s)",
        (list(_SETTINGS),),
    )
    settings = dict(cursor.fetchall())
    cursor.execute(
        "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, pg_catalog.current_database(), "
        "pg_catalog.pg_is_in_recovery(), current_user::pg_catalog.text"
    )
    version, database, in_recovery, user = cursor.fetchone()
    # From PostgreSQL 10 on every user may call this function, unless the privilege was revoked.
    cursor.execute("SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')")
    identifier = ""
    if cursor.fetchone()[0]:
        cursor.execute("SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()")
        identifier = cursor.fetchone()[0]
    return Server(version, identifier, database, in_recovery, settings, user)


def with_identifier(server: Server, dsn: str, replication: Any = None) -> Server:
    """Returns the server with its identifier, from a walsender if the user may not call `pg_control_system()`.

    Args:
        server: the result of `read_server`.
        dsn: of the database.
        replication: an open replication connection; None to open one.

    Raises:
        CaptureError: if it cannot be read, so that two servers could be confused. The message says what to grant.
    """
    if server.system_identifier:
        return server
    connection = replication
    try:
        if connection is None:
            connection = connect(dsn, replication=True)
        with connection.cursor() as cursor:
            cursor.execute("IDENTIFY_SYSTEM")
            identifier = str(cursor.fetchone()[0])
    except psycopg2.Error as problem:
        raise CaptureError(
            "the server does not tell its system identifier, so the capture could confuse it with another server. As a "
            "superuser in this database, run GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO "
            f"{quote_identifier(server.user)}. Or give this user the attribute REPLICATION and allow it a walsender, "
            f"which tells the identifier, too (the server says: {str(problem).strip()})"
        ) from None
    finally:
        if connection is not None and replication is None:
            connection.close()
    return replace(server, system_identifier=identifier)


def current_lsn(dsn: str) -> int:
    """Returns the end of the server's WAL, after all earlier commits.

    Raises:
        psycopg2.Error: if the server does not answer.
    """
    with session(dsn) as cursor:
        return read_position(cursor)


def position_of(lsn: Lsn, dsn: str) -> int:
    """Returns the LSN of a text or number, as `parse_lsn` does; for "now" the end of the server's WAL.

    Raises:
        ValueError, TypeError: if `lsn` is neither.
        psycopg2.Error: for "now", if the server does not answer.
    """
    if lsn == "now":
        return current_lsn(dsn)
    try:
        return parse_lsn(lsn)
    except ValueError as problem:
        raise ValueError(f"{problem}; or give 'now'") from None


def read_position(cursor: Any) -> int:
    """Returns the end of the server's WAL, through a cursor."""
    cursor.execute(f"SELECT {_WRITTEN_LSN}")
    return int(cursor.fetchone()[0] or 0)


def read_flushed_position(cursor: Any) -> int:
    """Returns the end of the WAL that the server can decode, through a cursor."""
    cursor.execute(f"SELECT {FLUSHED_LSN}")
    return int(cursor.fetchone()[0])
