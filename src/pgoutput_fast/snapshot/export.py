"""Creates a slot and exports the snapshot at which it begins. A connection keeps the snapshot while others read it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.errors

from pgoutput_fast.postgres.errors import StoppedError
from pgoutput_fast.postgres.session import Server, connect, read_server, session, with_identifier
from pgoutput_fast.postgres.slots import check_name, check_slot, drop_slot, logged_wait, temporary_name
from pgoutput_fast.protocol.lsn import parse_lsn

__all__ = ["Export", "SnapshotError", "SnapshotHolder", "export_snapshot"]

_log = logging.getLogger("pgoutput_fast.capture")

# How long a server may take to detect a closed connection.
_DROP_SECONDS = 60.0


class SnapshotError(RuntimeError):
    """A snapshot cannot be read, or can no longer be read; the message says why and what to do."""


@dataclass(frozen=True)
class Export:
    """A snapshot that other sessions can read.

    Attributes:
        name: the name for `SET TRANSACTION SNAPSHOT`.
        consistent_lsn: the snapshot has all commits before this LSN; the slot sends all commits from this LSN on.
        slot: the slot that begins there. A temporary slot ends with the snapshot.
        temporary: whether the slot is temporary.
        server: the server of the snapshot.
    """

    name: str
    consistent_lsn: int
    slot: str
    temporary: bool
    server: Server


class SnapshotHolder:
    """The connection that holds a snapshot. The snapshot ends with the connection or with the next command on it."""

    def __init__(self, export: Export, connection: Any, dsn: str) -> None:
        self.export = export
        self._dsn = dsn
        self._connection: Any = connection

    @property
    def closed(self) -> bool:
        """Whether this process closed the connection. The server may detect it later."""
        return bool(self._connection.closed)

    def close(self) -> None:
        """Releases the snapshot and a temporary slot. A second call has no effect."""
        self._connection.close()

    def drop(self) -> None:
        """Releases the snapshot and drops a permanent slot, too."""
        self.close()
        if not self.export.temporary:
            _drop_at_once(self._dsn, self.export.slot)


def export_snapshot(
    dsn: str,
    slot: str | None = None,
    *,
    two_phase: bool = False,
    failover: bool = False,
    keep_waiting: Callable[[], bool] | None = None,
) -> SnapshotHolder:
    """Creates a slot and exports the snapshot at which it begins.

    Waits until all transactions that are open or prepared now have ended.

    Args:
        dsn: of the database.
        slot: name of the permanent slot to create; None for a temporary one.
        two_phase, failover: as for `create_slot`.
        keep_waiting: called during the wait; returns whether to keep waiting. None to wait indefinitely.

    Raises:
        SnapshotError: if a slot with this name exists, or if `keep_waiting` became false.
        ValueError: for a name that no slot can have, and for features that the server's version lacks.
        psycopg2.Error: if the server refuses; `check` says what the server lacks.
    """
    name = slot if slot is not None else temporary_name()
    check_name(name)
    with session(dsn) as cursor:
        server = read_server(cursor)
    check_slot(server.major, two_phase=two_phase, failover=failover)
    connection = connect(dsn, replication=True)
    try:
        server = with_identifier(server, dsn, connection)
        command = _command(name, server.major, slot is None, two_phase, failover)
        created, point, snapshot, _ = _made(connection, command, logged_wait(dsn, name, keep_waiting), name)
    except psycopg2.errors.DuplicateObject:
        connection.close()
        raise SnapshotError(
            f"slot {name} exists, so its consistent point has passed and the server can export no snapshot for it. If "
            "an earlier load failed, drop the slot with drop_slot and start over. Otherwise choose another name. For "
            "tables that you added later, give no name"
        ) from None
    except BaseException:
        connection.close()
        raise
    return SnapshotHolder(Export(snapshot, parse_lsn(point), created, slot is None, server), connection, dsn)


def _made(connection: Any, command: str, keep_waiting: Callable[[], bool], slot: str) -> Any:
    """Runs the command that creates a slot and returns its row, or cancels it if `keep_waiting` becomes false.

    Without a cancel, the server would go on waiting.

    Raises:
        SnapshotError: if it was cancelled.
    """

    def make() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(command)
            return cursor.fetchone()

    try:
        return connection.call(make, keep_waiting)
    except StoppedError:
        raise SnapshotError(
            f"slot {slot} was not created: the open transactions did not end in time, or the program that "
            "waited for the slot ended first. Try again with more time"
        ) from None


def _drop_at_once(dsn: str, slot: str) -> None:
    """Drops an unused slot as soon as the server has detected that its connection is closed."""
    deadline = time.monotonic() + _DROP_SECONDS
    while time.monotonic() < deadline:
        try:
            drop_slot(dsn, slot)
            return
        except psycopg2.errors.ObjectInUse:
            time.sleep(0.05)
        except psycopg2.Error as problem:
            _log.warning(
                "the load cannot drop slot %s, which it created: %s. Drop it with drop_slot", slot, problem
            )
            return
    _log.warning(
        "the load cannot drop slot %s, which it created: it is still in use. Drop it with drop_slot", slot
    )


def _command(name: str, major: int, temporary: bool, two_phase: bool, failover: bool) -> str:
    words = f'CREATE_REPLICATION_SLOT "{name}"{" TEMPORARY" if temporary else ""} LOGICAL pgoutput'
    if major < 15:
        return f"{words} EXPORT_SNAPSHOT"
    options = ["SNAPSHOT 'export'"]
    if two_phase:
        options.append("TWO_PHASE true")
    if failover:
        options.append("FAILOVER true")
    return f"{words} ({', '.join(options)})"
