"""Lets one mirror at a time write into a target in an object store, which has no locks.

`_mirror/writer.json` names the process that may write. This process writes a heartbeat every few seconds, in a file of
its own. A process that finds another one named waits for a heartbeat: if one comes, it gives up; after a minute without
one, it puts its own name there. The earlier process may still run, for example without a network. It checks the name
before each commit, and stops if it is another one.

A process that is suspended for longer than a minute between this check and the commit may still commit. So a commit to
a table also requires that the table is at the position where this mirror left it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.errors import MirrorBusyError

__all__ = ["Lease"]

_log = logging.getLogger("pgoutput_fast.mirror")

_WRITER, _ALIVE = f"{OWN}/writer.json", f"{OWN}/alive"
# The period of the heartbeat; and the time without one after which another process may take the target.
_BEAT_SECONDS, _LEASE_SECONDS = 5.0, 60.0
_LOOK_SECONDS = 0.5


class Lease:
    """The lease: the right of this process to write into a target.

    Args:
        store: the target.
        seconds: the time without a heartbeat after which another process may take it.
    """

    def __init__(self, store: Store, seconds: float = _LEASE_SECONDS) -> None:
        self._store, self._seconds = store, seconds
        self._token = secrets.token_hex(16)
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="signs of life", daemon=True)

    def claim(self) -> None:
        """Takes the lease. Waits while it is unknown whether its holder is alive.

        Raises:
            MirrorBusyError: if another process holds it and is alive.
            OSError: if the store cannot be reached.
        """
        self._expect_dead(self._writer())
        self._say(0)
        mark = {
            "token": self._token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": _machine(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        self._store.put(_WRITER, json.dumps(mark).encode())
        self._beats.start()
        self.check()

    def check(self) -> None:
        """Checks that no other process has taken the lease.

        Raises:
            MirrorBusyError: if one has.
            OSError: if the store cannot be reached.
        """
        writer = self._writer()
        if writer is None:
            raise MirrorBusyError(
                f"somebody removed {self._store}/{_WRITER}, by which only one process writes: run the mirror again"
            )
        if writer["token"] != self._token:
            raise MirrorBusyError(
                f"{_shown(writer)} mirrors into {self._store} now, because this process gave no sign of life for "
                f"{self._seconds:.0f} seconds. This one ends"
            )

    def end(self) -> None:
        """Gives the lease back."""
        self._ended.set()
        if self._beats.is_alive():
            self._beats.join(_BEAT_SECONDS)  # without the store, a heartbeat takes long
        with suppress(Exception):
            writer = self._writer()
            if writer is not None and writer["token"] == self._token:
                self._store.remove(_WRITER)
        with suppress(Exception):
            self._store.remove(f"{_ALIVE}/{self._token}")

    # ---- the other process ---------------------------------------------------------------------------------------

    def _writer(self) -> Mapping[str, Any] | None:
        try:
            found = parsed_json(self._store.read(_WRITER))
            return {name: found[name] for name in ("token", "host", "pid", "machine", "since")}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._store}/{_WRITER} is damaged: remove it, if no other process mirrors into this target"
            ) from None

    def _expect_dead(self, writer: Mapping[str, Any] | None) -> None:
        """Waits until a process has written no heartbeat for long enough.

        Raises:
            MirrorBusyError: if it writes one.
        """
        if writer is None or _is_dead_here(writer):
            return
        name = f"{_ALIVE}/{writer['token']}"
        first, deadline = self._read(name), time.monotonic() + self._seconds
        if first is not None:
            _log.info("waiting whether %s still mirrors into %s", _shown(writer), self._store)
        while first is not None:
            if self._read(name) != first:
                raise MirrorBusyError(
                    f"{_shown(writer)} mirrors into {self._store}: stop it first, or use another target"
                )
            if time.monotonic() > deadline:
                self._store.remove(name)
                return
            time.sleep(min(_LOOK_SECONDS, self._seconds / 10))

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except FileNotFoundError:
            return None

    # ---- heartbeats ----------------------------------------------------------------------------------------------

    def _say(self, number: int) -> None:
        self._store.put(f"{_ALIVE}/{self._token}", str(number).encode())

    def _beat(self) -> None:
        number = 0
        while not self._ended.wait(min(_BEAT_SECONDS, self._seconds / 4)):
            number += 1
            with suppress(Exception):  # the store cannot be reached; the mirror notices by itself
                self._say(number)


def _shown(writer: Mapping[str, Any]) -> str:
    return f"process {writer['pid']} on {writer['host']} (since {writer['since']})"


def _machine() -> str | None:
    """Names the scope of a process number: the boot of this machine, and its container. None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_dead_here(writer: Mapping[str, Any]) -> bool:
    """Whether a process ran on this machine, and has ended."""
    if writer["machine"] is None or writer["machine"] != _machine():
        return False
    try:
        os.kill(int(writer["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
