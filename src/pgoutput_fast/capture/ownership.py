"""That one capture at a time writes into a directory: a lock where there are locks, a mark in a store.

A store knows no lock, and no write on the condition that nobody else wrote. There the slot is the lock: a server sends
it to one at a time. Who has it leaves a mark. Who had it before, and does not know yet that its connection is lost,
looks for its mark before and after each segment that it writes, and stops if it is another's.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgoutput_fast.capture.errors import CaptureBusyError, CaptureError
from pgoutput_fast.segment_stores import Store

__all__ = ["Owner", "owned"]

MARK = "_writer.json"


class Owner(ABC):
    """Who writes into a directory."""

    @abstractmethod
    def claim(self) -> None:
        """To be called by who has the slot: from now on nobody else writes."""

    @abstractmethod
    def check(self) -> None:
        """CaptureBusyError if somebody else has claimed the directory since."""


@contextmanager
def owned(store: Store) -> Iterator[Owner]:
    """The right to write into a directory, for the time of the block.

    Raises:
        CaptureBusyError: if another process of this machine has it.
    """
    if not store.local:
        yield _Marked(store)
        return
    with open(Path(store.at(".lock")), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaptureBusyError(f"another process captures into {store}") from None
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()} since {_now()}\n")
        file.flush()
        yield _Locked()


class _Locked(Owner):
    def claim(self) -> None:
        """The lock is enough."""

    def check(self) -> None:
        """The lock is enough."""


class _Marked(Owner):
    def __init__(self, store: Store) -> None:
        self._store = store
        self._token = secrets.token_hex(16)

    def claim(self) -> None:
        mark = {"token": self._token, "host": socket.gethostname(), "pid": os.getpid(), "since": _now()}
        self._store.put(MARK, json.dumps(mark).encode())

    def check(self) -> None:
        try:
            mark = json.loads(self._store.read(MARK))
        except FileNotFoundError:
            raise CaptureError(f"{self._store}/{MARK} is gone: start the capture again") from None
        if mark["token"] != self._token:
            raise CaptureBusyError(
                f"another process captures into {self._store}: {mark['pid']} on {mark['host']} since {mark['since']}. "
                "This one stops"
            )


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
