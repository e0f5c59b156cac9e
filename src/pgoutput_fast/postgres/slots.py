"""Replication slots: list, create and drop them."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg2.errors

from pgoutput_fast.postgres.locks import open_transactions
from pgoutput_fast.postgres.session import connect, read_server, session

__all__ = [
    "NOT_OF_REPACK",
    "Slot",
    "alter_slot",
    "create_slot",
    "drop_slot",
    "end_making",
    "find_slot",
    "is_physical",
    "keep_decoding",
    "list_slots",
    "temporary_slot",
]

_log = logging.getLogger("pgoutput_fast.capture")

# After this time the transactions that a new slot waits for are logged.
_LOG_SECONDS = 2.0
_NAME = re.compile(r"[a-z0-9_]{1,63}")

# From 19 on, REPACK (CONCURRENTLY) has an internal temporary slot, which counts against a separate limit.
NOT_OF_REPACK = "coalesce(s.plugin::pg_catalog.text, '') OPERATOR(pg_catalog.<>) 'pgrepack'"

# Read as JSON, because older servers lack columns: wal_status is new in 13, two_phase in 14, failover in 17.
_QUERY = f"""
SELECT s.slot_name::pg_catalog.text, s.plugin::pg_catalog.text, s.database::pg_catalog.text,
       s.temporary, s.active, s.active_pid,
       (s.restart_lsn OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn)::pg_catalog.int8,
       (s.confirmed_flush_lsn OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn)::pg_catalog.int8,
       (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
        ELSE pg_catalog.pg_current_wal_lsn() END OPERATOR(pg_catalog.-) s.restart_lsn)::pg_catalog.int8,
       j.slot OPERATOR(pg_catalog.->>) 'wal_status',
       (j.slot OPERATOR(pg_catalog.->>) 'safe_wal_size')::pg_catalog.int8,
       coalesce((j.slot OPERATOR(pg_catalog.->>) 'two_phase')::pg_catalog.bool, false),
       coalesce((j.slot OPERATOR(pg_catalog.->>) 'failover')::pg_catalog.bool, false),
       j.slot OPERATOR(pg_catalog.->>) 'invalidation_reason',
       coalesce((j.slot OPERATOR(pg_catalog.->>) 'conflicting')::pg_catalog.bool, false)
FROM pg_catalog.pg_replication_slots s, LATERAL (SELECT pg_catalog.to_json(s)) j (slot)
WHERE s.slot_type OPERATOR(pg_catalog.=) 'logical' AND {NOT_OF_REPACK}
  AND (%(name)s::pg_catalog.text IS NULL OR s.slot_name OPERATOR(pg_catalog.=) %(name)s)
ORDER BY s.slot_name
"""


_IS_LAST = f"""
SELECT NOT EXISTS (
    SELECT FROM pg_catalog.pg_replication_slots s
    WHERE s.slot_type OPERATOR(pg_catalog.=) 'logical' AND s.slot_name OPERATOR(pg_catalog.<>) %(name)s
      AND s.invalidation_reason IS NULL AND {NOT_OF_REPACK}
)
"""
_HAS_STANDBY = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_type OPERATOR(pg_catalog.=) 'physical')
    OR EXISTS (
        SELECT FROM pg_catalog.pg_stat_replication r WHERE NOT EXISTS (
            SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid OPERATOR(pg_catalog.=) r.pid
        )
    )
"""

# The key of an advisory lock that a running capture holds, also between two peeks.
_OWNER = "(pg_catalog.hashtext('pgoutput_fast owner'), pg_catalog.hashtext(%s))"


@dataclass(frozen=True)
class Slot:
    """A logical replication slot, as the server describes it.

    Attributes:
        name: the slot's name.
        plugin: its output plugin.
        database: the database whose changes it decodes.
        temporary: whether it ends with its session.
        active_pid: the server process that uses it, None if none does.
        restart_lsn: start of the WAL that it retains, None if it was invalidated.
        confirmed_flush_lsn: the confirmed LSN; the slot sends later commits.
        kept_bytes: bytes of WAL that it retains, None if it retains none.
        wal_status: `reserved`, `extended`, `unreserved` or `lost` (13 and later, else None).
        safe_bytes: bytes of WAL that can be written until the slot may be invalidated; None without a limit or before
            13.
        two_phase: whether it decodes prepared transactions when they are prepared.
        failover: whether it is synchronized to standbys.
        invalidated: why the slot is unusable, None if it is usable.
    """

    name: str
    plugin: str
    database: str
    temporary: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    kept_bytes: int | None
    wal_status: str | None
    safe_bytes: int | None
    two_phase: bool
    failover: bool
    invalidated: str | None


def list_slots(dsn: str) -> list[Slot]:
    """Returns the logical slots of all databases, without those of a running REPACK (CONCURRENTLY).

    Raises:
        psycopg2.Error: if a query fails.
    """
    with session(dsn) as cursor:
        return read_slots(cursor)


def find_slot(dsn: str, name: str) -> Slot | None:
    """Returns the slot with this name, None if there is none.

    Raises:
        psycopg2.Error: if a query fails.
    """
    with session(dsn) as cursor:
        return read_slot(cursor, name)


def is_physical(dsn: str, name: str) -> bool:
    """Whether a physical slot has this name.

    Raises:
        psycopg2.Error: if a query fails.
    """
    with session(dsn) as cursor:
        return has_physical(cursor, name)


def has_physical(cursor: Any, name: str) -> bool:
    """Whether a physical slot has this name, through a cursor."""
    cursor.execute(
        "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_type OPERATOR(pg_catalog.=) 'physical' "
        "AND slot_name OPERATOR(pg_catalog.=) %s",
        (name,),
    )
    return cursor.fetchone() is not None


def read_slot(cursor: Any, name: str) -> Slot | None:
    """Returns the slot with this name through a cursor, None if there is none."""
    return next(iter(read_slots(cursor, name)), None)


def was_read(cursor: Any, name: str) -> bool:
    """Whether a client has read or peeked changes of a slot, by the server's statistics (14 and later)."""
    cursor.execute("SELECT pg_catalog.to_regclass('pg_catalog.pg_stat_replication_slots') IS NOT NULL")
    if not cursor.fetchone()[0]:
        return False
    cursor.execute(
        "SELECT total_txns OPERATOR(pg_catalog.>) 0 FROM pg_catalog.pg_stat_replication_slots "
        "WHERE slot_name OPERATOR(pg_catalog.=) %s",
        (name,),
    )
    return any(read for (read,) in cursor.fetchall())


def own(cursor: Any, name: str) -> None:
    """Marks a slot as owned by a capture or mirror while the cursor's session lasts.

    Raises:
        psycopg2.errors.ObjectInUse: if another session owns the slot.
    """
    cursor.execute(f"SELECT pg_catalog.pg_try_advisory_lock{_OWNER}", (name,))
    if not cursor.fetchone()[0]:
        raise psycopg2.errors.ObjectInUse(f"another capture, or a mirror, reads slot {name}")


def is_owned(cursor: Any, name: str) -> bool:
    """Whether a running capture or mirror owns the slot. Stopped ones are unknown."""
    cursor.execute(f"SELECT NOT pg_catalog.pg_try_advisory_xact_lock_shared{_OWNER}", (name,))
    return bool(cursor.fetchone()[0])


def read_slots(cursor: Any, name: str | None = None) -> list[Slot]:
    """Returns all logical slots, or those with this name, through a cursor."""
    cursor.execute(_QUERY, {"name": name})
    return [_slot(*row) for row in cursor.fetchall()]


def _slot(
    name: str, plugin: str, database: str, temporary: bool, active: bool, pid: int | None, restart: int | None,
    confirmed: int | None, kept: int | None, wal_status: str | None, safe: int | None, two_phase: bool, failover: bool,
    reason: str | None, conflicting: bool,
) -> Slot:  # fmt: skip
    # PostgreSQL 16 has no reason, and reports every invalidated slot as conflicting. A slot without WAL has no
    # restart_lsn.
    if reason is None and conflicting and restart is not None:
        reason = "conflicting with recovery"
    if reason is None and (wal_status == "lost" or (restart is None and confirmed is not None)):
        reason = "wal_removed"
    return Slot(
        name, plugin, database, temporary, pid if active else None, restart, confirmed, kept, wal_status, safe,
        two_phase, failover, reason,
    )  # fmt: skip


def temporary_name() -> str:
    """Returns a new unique name for a temporary slot."""
    return f"pgoutput_fast_{os.getpid()}_{secrets.token_hex(4)}"


def check_name(name: str) -> None:
    """Checks that a slot can have this name.

    Raises:
        ValueError: if it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a slot's name must have 1 to 63 lower case letters, digits and underscores; {name!r} does not"
        )


def check_slot(major: int, *, two_phase: bool, failover: bool) -> None:
    """Checks that a server of this version can have a slot with these properties.

    Raises:
        ValueError: if it cannot.
    """
    if two_phase and major < 15:
        # PostgreSQL 14 has two-phase slots, but its pgoutput does not support them.
        raise ValueError(
            f"pgoutput sends prepared transactions from PostgreSQL 15 on; this server is {major}"
        )
    if failover and major < 17:
        raise ValueError(f"failover slots came with PostgreSQL 17; this server is {major}")


def create_slot(dsn: str, name: str, *, two_phase: bool = False, failover: bool = False) -> Slot:
    """Creates a permanent slot for pgoutput, which begins after all currently open transactions have ended.

    Args:
        dsn: of the database whose changes the slot decodes.
        name: at most 63 lower case letters, digits and underscores.
        two_phase: decode prepared transactions when they are prepared (15 and later).
        failover: synchronize the slot to standbys (17 and later).

    Raises:
        ValueError: for a name that no slot can have, and for features that the server's version lacks.
        psycopg2.Error: if the server refuses; `check` says what the server lacks.
    """
    check_name(name)
    with session(dsn) as cursor:
        return _create(cursor, dsn, name, temporary=False, two_phase=two_phase, failover=failover)


def alter_slot(dsn: str, name: str, *, failover: bool) -> None:
    """Changes an existing slot, which must have no reader at the moment.

    Args:
        dsn: of a database of the server, with a user who may have a replication connection.
        name: of the slot.
        failover: whether the slot is synchronized to standbys (17 and later). Only a primary can change it.

    Raises:
        ValueError: for a name that no slot can have, or before 17.
        psycopg2.errors.ObjectInUse: if a client reads the slot: stop it before.
        psycopg2.Error: if there is no such slot, or the server refuses for another reason.
    """
    check_name(name)
    with closing(connect(dsn, replication=True)) as connection, connection.cursor() as cursor:
        check_slot(connection.server_version // 10000, two_phase=False, failover=True)
        cursor.execute(f'ALTER_REPLICATION_SLOT "{name}" (FAILOVER {str(failover).lower()})')


@contextmanager
def temporary_slot(
    dsn: str, name: str | None = None, *, two_phase: bool = False
) -> Iterator[tuple[Slot, Any]]:
    """Creates a slot for pgoutput during a block. The slot is dropped with its session, however that ends.

    No other session can read from the slot, so no `Capture` can use it. It is for reading changes through SQL.

    Args:
        dsn, two_phase: as for `create_slot`.
        name: as for `create_slot`; None for a new unique name.

    Returns:
        A context with the slot and a psycopg2 cursor of its session, for `pg_logical_slot_get_binary_changes`.

    Raises:
        ValueError, psycopg2.Error: as `create_slot`.
    """
    name = name if name is not None else temporary_name()
    check_name(name)
    with session(dsn) as cursor:
        yield _create(cursor, dsn, name, temporary=True, two_phase=two_phase, failover=False), cursor


def temporary_copy(cursor: Any, name: str) -> str | None:
    """Creates a temporary copy of a slot, which ends with the cursor's session, and returns its name.

    Returns:
        None if there is no equivalent copy: before 12, for a two-phase slot, or at the limit of slots.
    """
    slot = read_slot(cursor, name)
    if slot is None or slot.two_phase or cursor.connection.server_version < 120000:
        return None
    copy = temporary_name()
    with suppress(psycopg2.errors.ConfigurationLimitExceeded):
        cursor.execute("SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s, true)", (name, copy))
        return copy
    return None


def _create(cursor: Any, dsn: str, name: str, *, temporary: bool, two_phase: bool, failover: bool) -> Slot:
    major = read_server(cursor).major
    check_slot(major, two_phase=two_phase, failover=failover)
    arguments: list[Any] = [name, temporary]
    if major >= 14:
        arguments.append(two_phase)
    if major >= 17:
        arguments.append(failover)
    places = ", ".join(["%s"] * (len(arguments) - 1))
    query = f"SELECT pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput', {places})"
    cursor.connection.call(lambda: cursor.execute(query, arguments), logged_wait(dsn, name))
    slot = read_slot(cursor, name)
    assert slot is not None
    return slot


def end_making(dsn: str, name: str, pid: int) -> None:
    """Terminates a server process that creates a slot for a client that is gone, if the user may."""
    with session(dsn) as cursor, suppress(psycopg2.errors.InsufficientPrivilege):
        _warn_standbys(cursor, name)
        cursor.execute("SELECT pg_catalog.pg_terminate_backend(%s)", (pid,))


def logged_wait(dsn: str, name: str, keep_waiting: Callable[[], bool] | None = None) -> Callable[[], bool]:
    """A function to call while the server creates a slot. It logs the transactions that block it for long.

    Args:
        dsn: of the database.
        name: of the slot.
        keep_waiting: returns the function's result; None for always true.
    """
    at = time.monotonic() + _LOG_SECONDS
    is_logged = False

    def check() -> bool:
        nonlocal is_logged
        if not is_logged and time.monotonic() > at:
            is_logged = True
            with suppress(psycopg2.Error), session(dsn) as cursor:
                _log.warning(
                    "the server creates slot %s once the transactions that are open now have ended: %s",
                    name,
                    open_transactions(cursor) or "unknown ones",
                )
        return keep_waiting is None or keep_waiting()

    return check


def drop_slot(dsn: str, name: str) -> bool:
    """Drops a slot, which releases its WAL, and returns whether the slot existed.

    Raises:
        psycopg2.Error: if a client uses the slot, or the server refuses for another reason.
    """
    with session(dsn) as cursor:
        slot = read_slot(cursor, name)
        if slot is None:
            return False
        if slot.invalidated is None:
            _warn_standbys(cursor, name)
        cursor.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (name,))
        return True


@contextmanager
def keep_decoding(dsn: str, name: str) -> Iterator[None]:
    """Keeps logical decoding enabled during a block that drops a slot and creates it again.

    A server with wal_level = replica would disable it after its last logical slot. A temporary copy of the slot
    prevents that. At the limit of slots there is no copy, and `drop_slot` warns.

    Raises:
        psycopg2.Error: if a query fails.
    """
    with ExitStack() as stack:
        cursor = stack.enter_context(session(dsn))
        # The server cannot copy a slot that is still being created or already gone.
        with suppress(psycopg2.errors.ObjectNotInPrerequisiteState, psycopg2.errors.UndefinedObject):
            if not _ends_decoding(cursor, name) or temporary_copy(cursor, name) is None:
                stack.close()
        yield


def _warn_standbys(cursor: Any, name: str) -> None:
    """Warns before the drop of a slot that disables logical decoding, if standbys may depend on it."""
    if _ends_decoding(cursor, name) and _is_true(cursor, _HAS_STANDBY):
        _log.warning(
            "slot %s is the last logical slot of a server with wal_level = replica. Without one, the server ends "
            "logical decoding, and its standbys invalidate their logical slots. If they have any, set "
            "wal_level = logical, or make another logical slot before you drop this one",
            name,
        )


def _ends_decoding(cursor: Any, name: str) -> bool:
    """Whether dropping this slot disables logical decoding (19 and later)."""
    server = read_server(cursor)
    if server.major < 19 or server.in_recovery or server.settings["wal_level"] != "replica":
        return False
    return _is_true(cursor, _IS_LAST, name=name)


def _is_true(cursor: Any, query: str, **arguments: Any) -> bool:
    cursor.execute(query, arguments)
    return bool(cursor.fetchone()[0])
