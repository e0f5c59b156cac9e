"""Lets only one capture at a time write into a directory: with a file lock, or with a mark in an object store.

An object store has no locks. There the slot is the lock: a server streams it to one client at a time. The capture that
has the slot writes a mark. An earlier capture may not know yet that its connection is lost. It checks its own mark
before and after each segment that it writes, and stops if the mark has been replaced.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.capture.errors import CaptureBusyError, CaptureError
from pgoutput_fast.storage.locks import try_lock
from pgoutput_fast.storage.stores import Store, remove_directories

__all__ = ["Owner", "owned"]

MARK = "_writer.json"
_LOCK = ".lock"


class Owner(ABC):
    """The right of one capture to write into a directory."""

    @abstractmethod
    def claim(self) -> None:
        """Claims the directory. Call it once the slot is acquired: from then on nobody else writes."""

    @abstractmethod
    def check(self) -> None:
        """Checks that no other process has claimed the directory since.

        Raises:
            CaptureBusyError: if another process has claimed it.
        """


@contextmanager
def owned(store: Store) -> Iterator[Owner]:
    """Holds the right to write into a directory during the block.

    Raises:
        CaptureBusyError: if another process of this machine has it.
    """
    if not store.local:
        yield _Marked(store)
        return
    with open(Path(store.at(_LOCK)), "a+") as file:
        if not try_lock(file):
            raise CaptureBusyError(f"another process captures into {store}")
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()} since {_now()}\n")
        file.flush()
        yield _Locked()


@contextmanager
def removed_after_error(store: Store, missing: Sequence[Path]) -> Iterator[None]:
    """After an error in the block, removes the directories created for it, if they contain only the lock.

    Args:
        store: the directory, which is owned.
        missing: the directories that did not exist, deepest first.
    """
    try:
        yield
    except BaseException:
        if missing and os.listdir(missing[0]) == [_LOCK]:
            os.unlink(missing[0] / _LOCK)
            remove_directories(missing)
        raise


class _Locked(Owner):
    def claim(self) -> None:
        """The lock is sufficient."""

    def check(self) -> None:
        """The lock is sufficient."""


class _Marked(Owner):
    def __init__(self, store: Store) -> None:
        self._store = store
        self._token = secrets.token_hex(16)

    def claim(self) -> None:
        mark = {"token": self._token, "host": socket.gethostname(), "pid": os.getpid(), "since": _now()}
        self._store.put(MARK, json.dumps(mark).encode())

    def check(self) -> None:
        try:
            mark = parsed_json(self._store.read(MARK))
        except FileNotFoundError:
            raise CaptureError(f"somebody removed {self._store}/{MARK}: start the capture again") from None
        except ValueError:
            mark = None
        if not isinstance(mark, dict) or not {"token", "pid", "host", "since"} <= mark.keys():
            raise CaptureError(f"{self._store}/{MARK} is damaged: start the capture again")
        if mark["token"] != self._token:
            raise CaptureBusyError(
                f"another process captures into {self._store}: {mark['pid']} on {mark['host']} since {mark['since']}. "
                "This capture ends"
            )


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
