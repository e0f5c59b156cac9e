"""Sessions with a server, and what it says of itself. Values are printed as a session is set: so it is pinned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from pgoutput_fast.capture.errors import CaptureError
from pgoutput_fast.lsn import Lsn, parse_lsn

__all__ = [
    "PINS",
    "DsnError",
    "Server",
    "connect",
    "current_lsn",
    "position_of",
    "read_position",
    "read_server",
    "session",
    "with_identifier",
]

# Text cells follow the session that decodes. These are the settings under which text means one thing.
PINS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "lc_monetary": "C",
    # From 18 on a publication that is not there is a warning, and nothing else says so.
    "client_min_messages": "warning",
    # What a user may have set for all sessions must not end one that waits for changes, or for a long read.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

# The same, of later versions: before, a session that asks for them is refused. Name -> from which version on.
_LATER_TIMEOUTS = {"idle_session_timeout": 140000, "transaction_timeout": 170000}

# A cut connection is noticed by the system within a minute. Keepalives run only while nothing waits to be acknowledged;
# a walsender is told again and again how far this is, so that something always does: there the user timeout counts.
_CUT = {"keepalives": 1, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 4}
_UNACKNOWLEDGED_MS = 30_000
# A network that loses everything, or a server that accepts and says nothing, must not hold up the next try.
_CONNECT_SECONDS = 20
# Since this version libpq knows the parameter; an older one refuses it.
_USER_TIMEOUT_LIBPQ = 120000


@dataclass(frozen=True)
class Server:
    """A server and a database of it.

    Attributes:
        version: such as 180001 for 18.1, and 100023 for 10.23.
        system_identifier: of the cluster; a copy has the same. Empty if the user may not read it: see
            `with_identifier`.
        database: its name.
        in_recovery: whether it is a standby.
        settings: those that matter for decoding, as `SHOW` prints them.
    """

    version: int
    system_identifier: str
    database: str
    in_recovery: bool
    settings: dict[str, str]

    @property
    def major(self) -> int:
        """Such as 18."""
        return self.version // 10000


class DsnError(psycopg2.ProgrammingError, ValueError):  # type: ignore[misc]
    """A connection string that libpq cannot read, or would not read as it is meant. It is not repeated, and no piece of
    it: that may be a password."""


# What libpq says, without the pieces that it repeats.
_WRONG = (
    ('missing "="', 'a word has no "=" behind it; a value with blanks stands in single quotes'),
    ("unterminated quoted string", "a quote does not end"),
    ("forbidden value", "%00 is in it"),
    ("percent-encoded", "a % is not followed by two hexadecimal digits; a % itself is written %25"),
    ("separator", "the options behind ? are not of the form name=value, with & between"),
    ("matching", 'the address of a host has no "]" at its end'),
    ("unexpected character", "behind the address of a host there is neither a port nor a path"),
    ("URI query parameter", "libpq knows no option of a name behind ?"),
    (
        "connection option",
        "libpq knows no option of a name in it; a value with blanks stands in single quotes",
    ),
)


def _parsed(dsn: str) -> dict[str, str]:
    """What a connection string says.

    Raises:
        DsnError: if it cannot be read.
    """
    wrong: str | None
    try:
        given: dict[str, str] = psycopg2.extensions.parse_dsn(dsn)
    except psycopg2.ProgrammingError as problem:
        said = str(problem)
        wrong = next(
            (what for sign, what in _WRONG if sign in said), "libpq does not say more without its text"
        )
    else:
        wrong = _misread(given, is_uri="://" in dsn)
    if wrong is not None:
        raise DsnError(f"the connection string (dsn) cannot be read: {wrong}")
    return given


def _misread(given: dict[str, str], *, is_uri: bool) -> str | None:
    """What says that a password was taken for something else, which errors of libpq would repeat; None if nothing."""
    hosts = given.get("host", "").split(",")
    ports = given.get("port", "").split(",")
    in_host = any("@" in host[1:] and not host.startswith("/") for host in hosts)
    in_database = is_uri and "@" in given.get("dbname", "") and "user" not in given
    if in_host or in_database or not all(not port or port.isdecimal() for port in ports):
        return (
            "its host or port is none. In a URI the characters @ / : ? # and % of a user or password are written "
            "%40 %2F %3A %3F %23 and %25"
            if is_uri
            else "its host or port is none"
        )
    return None


def connect(dsn: str, *, replication: bool = False, **parameters: Any) -> Any:
    """A pinned psycopg2 connection; autocommitting, or a logical walsender's.

    Args:
        dsn: libpq's connection string or URI.
        replication: whether it is to speak the replication protocol.
        parameters: of libpq, such as `connect_timeout` (20 seconds) or `tcp_user_timeout` (30,000 ms); the string's own
            go over them.

    Raises:
        psycopg2.OperationalError: if the server cannot be reached or refuses.
        DsnError: for a string that cannot be read.
    """
    given = _parsed(dsn)
    pins = " ".join(f"-c {name}={value}" for name, value in PINS.items())
    # Behind the user's own, so that the pins hold.
    options = f"{given.pop('options', '')} {pins}".strip()
    cut = dict(_CUT, connect_timeout=_CONNECT_SECONDS)
    if psycopg2.extensions.libpq_version() >= _USER_TIMEOUT_LIBPQ:
        cut["tcp_user_timeout"] = _UNACKNOWLEDGED_MS
    merged = {"application_name": "pgoutput_fast", **cut, **parameters, **given, "options": options}
    if replication:
        merged["connection_factory"] = psycopg2.extras.LogicalReplicationConnection
    connection = psycopg2.connect(**merged)
    try:
        if not replication:
            connection.autocommit = True
        known = [name for name, since in _LATER_TIMEOUTS.items() if connection.server_version >= since]
        if known:
            with connection.cursor() as cursor:
                cursor.execute("; ".join(f"SET {name} = 0" for name in known))
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def session(dsn: str, **parameters: Any) -> Iterator[Any]:
    """A cursor of a pinned session that ends with the block."""
    connection = connect(dsn, **parameters)
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


_SETTINGS = (
    "wal_level", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size", "wal_sender_timeout",
    "logical_decoding_work_mem", "max_prepared_transactions", "idle_replication_slot_timeout", "server_encoding",
    "track_commit_timestamp", "max_wal_size",
)  # fmt: skip


def read_server(cursor: Any) -> Server:
    """What the server at the other end of a cursor says of itself.

    Raises:
        psycopg2.Error: if it does not answer.
    """
    cursor.execute(
        "SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.pg_settings "
        "WHERE name OPERATOR(pg_catalog.=) ANY (%s)",
        (list(_SETTINGS),),
    )
    settings = dict(cursor.fetchall())
    cursor.execute(
        "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, pg_catalog.current_database(), "
        "pg_catalog.pg_is_in_recovery()"
    )
    version, database, in_recovery = cursor.fetchone()
    # Every user may ask from 10 on; a grant can have been taken away.
    cursor.execute("SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')")
    identifier = ""
    if cursor.fetchone()[0]:
        cursor.execute("SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()")
        identifier = cursor.fetchone()[0]
    return Server(version, identifier, database, in_recovery, settings)


def with_identifier(server: Server, dsn: str, replication: Any = None) -> Server:
    """The same server, its identifier asked of a walsender if the user may not call `pg_control_system()`.

    Args:
        server: as `read_server` gives it.
        dsn: of the database.
        replication: a connection that speaks the replication protocol, if there is one; else one is made.

    Raises:
        CaptureError: if there is no way: two servers could not be told apart. The message says what to grant.
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
            "the server does not say which one it is, so that another one could be taken for it. Let the user read "
            "it, as a superuser in this database: GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO ...; or "
            f"give it the attribute REPLICATION and a walsender, which says so, too (it said: {str(problem).strip()})"
        ) from None
    finally:
        if connection is not None and replication is None:
            connection.close()
    return replace(server, system_identifier=identifier)


def current_lsn(dsn: str) -> int:
    """How far the server's log is: what committed before is up to there.

    Raises:
        psycopg2.Error: if it does not answer.
    """
    with session(dsn) as cursor:
        return read_position(cursor)


def position_of(lsn: Lsn, dsn: str) -> int:
    """What is meant by an LSN, as `parse_lsn` takes it, or by "now": how far the server's log is.

    Raises:
        ValueError, TypeError: if it is neither.
        psycopg2.Error: if the server is asked and does not answer.
    """
    if lsn == "now":
        return current_lsn(dsn)
    try:
        return parse_lsn(lsn)
    except ValueError as problem:
        raise ValueError(f"{problem}; or 'now'") from None


def read_position(cursor: Any) -> int:
    """The same through a cursor."""
    cursor.execute(
        "SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() "
        "ELSE pg_catalog.pg_current_wal_lsn() END OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn)::pg_catalog.int8"
    )
    return int(cursor.fetchone()[0] or 0)
