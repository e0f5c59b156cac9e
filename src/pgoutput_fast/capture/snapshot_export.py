"""A slot and a snapshot of the moment from which it streams: exported, and held for as long as somebody reads it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.errors

from pgoutput_fast.capture.session import Server, connect, read_server, session, with_identifier
from pgoutput_fast.capture.slots import check_name, check_slot, drop_slot
from pgoutput_fast.lsn import parse_lsn

__all__ = ["Export", "SnapshotError", "SnapshotHolder", "export_snapshot"]

_log = logging.getLogger("pgoutput_fast.capture")

_LOOK_SECONDS = 0.5
# So long a server may take to notice that a connection is gone.
_DROP_SECONDS = 60.0


class SnapshotError(RuntimeError):
    """A snapshot cannot be read (any more); the message says why and what to do."""


@dataclass(frozen=True)
class Export:
    """A snapshot that other sessions can read.

    Attributes:
        name: for `SET TRANSACTION SNAPSHOT`.
        consistent_lsn: it shows what committed before; what committed there or later is what the slot sends.
        slot: the slot that begins there; a temporary one goes with the snapshot.
        temporary: whether it does.
        server: where it is.
    """

    name: str
    consistent_lsn: int
    slot: str
    temporary: bool
    server: Server


class SnapshotHolder:
    """The connection on which a snapshot lives: it goes with it, and with the next command on it."""

    def __init__(self, export: Export, connection: Any, dsn: str) -> None:
        self.export = export
        self._dsn = dsn
        self._connection: Any = connection

    @property
    def closed(self) -> bool:
        """Whether it was let go of here. The server may need some time to notice."""
        return bool(self._connection.closed)

    def close(self) -> None:
        """Lets go of the snapshot, and of a temporary slot. Does nothing a second time."""
        self._connection.close()

    def drop(self) -> None:
        """Lets go of the snapshot, and drops a permanent slot, too: nobody will read it."""
        self.close()
        if not self.export.temporary:
            _drop_at_once(self._dsn, self.export.slot)


def export_snapshot(
    dsn: str,
    slot: str | None = None,
    *,
    two_phase: bool = False,
    failover: bool = False,
    wanted: Callable[[], bool] | None = None,
) -> SnapshotHolder:
    """Creates a slot and exports the snapshot at which it begins.

    Waits for transactions that are open now, or prepared, to end.

    Args:
        dsn: of the database.
        slot: name of the permanent slot to create; None for a temporary one.
        two_phase, failover: as for `create_slot`.
        wanted: asked, from another thread, whether to go on waiting; None for as long as it takes.

    Raises:
        SnapshotError: if there is a slot of that name, or it was not wanted so long.
        ValueError: for a name that no slot can have, and for what the server's version lacks.
        psycopg2.Error: if the server refuses; `check` says what it lacks.
    """
    name = slot if slot is not None else f"pgoutput_fast_{os.getpid()}_{secrets.token_hex(4)}"
    check_name(name)
    with session(dsn) as cursor:
        server = read_server(cursor)
    check_slot(server.major, two_phase=two_phase, failover=failover)
    connection = connect(dsn, replication=True)
    try:
        server = with_identifier(server, dsn, connection)
        with connection.cursor() as cursor, _cancelled_unless(wanted, connection, name):
            cursor.execute(_command(name, server.major, slot is None, two_phase, failover))
            created, point, snapshot, _ = cursor.fetchone()
    except psycopg2.errors.DuplicateObject:
        connection.close()
        raise SnapshotError(
            f"slot {name} exists: its consistent point has passed, and no snapshot can be had for it any more. If an "
            "earlier load was broken off, drop_slot it and start over; else take another name, or none for tables "
            "that were added later"
        ) from None
    except BaseException:
        connection.close()
        raise
    return SnapshotHolder(Export(snapshot, parse_lsn(point), created, slot is None, server), connection, dsn)


@contextlib.contextmanager
def _cancelled_unless(wanted: Callable[[], bool] | None, connection: Any, slot: str) -> Iterator[None]:
    """Has the server give up what the block waits for: it does not notice by itself that its client is gone.

    Raises:
        SnapshotError: if it was not wanted any more.
    """
    if wanted is None:
        yield
        return
    done, given_up = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            if not wanted():
                given_up.set()
                with contextlib.suppress(psycopg2.Error):
                    connection.cancel()

    thread = threading.Thread(target=watch, name="pgoutput_fast-snapshot-wanted", daemon=True)
    thread.start()
    try:
        yield
    except psycopg2.errors.QueryCanceled:
        if not given_up.is_set():
            raise
        raise SnapshotError(
            f"slot {slot} was not created: the time was over, or nobody waited for it any more, before the "
            "transactions that were open had ended"
        ) from None
    finally:
        done.set()
        thread.join()


def _drop_at_once(dsn: str, slot: str) -> None:
    """Drops a slot that nobody will read, once the server has noticed that its connection is gone."""
    deadline = time.monotonic() + _DROP_SECONDS
    while time.monotonic() < deadline:
        try:
            drop_slot(dsn, slot)
            return
        except psycopg2.errors.ObjectInUse:
            time.sleep(0.05)
        except psycopg2.Error as problem:
            _log.warning("slot %s was created and could not be dropped: %s", slot, problem)
            return
    _log.warning("slot %s was created and could not be dropped: it is still in use", slot)


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
