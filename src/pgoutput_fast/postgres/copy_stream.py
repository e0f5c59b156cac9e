"""Reads COPY data of a psycopg2 connection through its libpq, without a Python object per message."""

from __future__ import annotations

import ctypes
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa

from pgoutput_fast._core.copy.libpq import (
    COMMAND_OK,
    COPY_OUT,
    ENDED,
    FAILED,
    FUNCTIONS,
    OPEN,
    TUPLES_OK,
    CopyData,
)
from pgoutput_fast.protocol.limits import RECEIVED_BYTES

__all__ = ["CopyLink"]

_CHECK_SECONDS = 0.2  # how often a wait checks `keep_waiting`
_GOOD = (COMMAND_OK, TUPLES_OK)
# The prefix of an error text in libpq, which psycopg2 omits.
_SEVERITY = re.compile(r"\A\w+:  ")


@functools.cache
def _functions() -> dict[str, int]:
    """The addresses of libpq's functions.

    A symbol lookup in psycopg2's library also searches the libraries linked to it.
    """
    library = ctypes.CDLL(psycopg2._psycopg.__file__)
    return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS}


class CopyLink:
    """Reads COPY data from a connection. During a COPY, psycopg2 may write to the connection, but not read from it.

    Args:
        connection: an open psycopg2 connection.
        on_warning: called with (SQLSTATE, message) for warnings of the server, before any method returns data that
            arrived with or after the warning. If it raises, the method that called it raises the error and returns no
            data. If it is None, psycopg2 handles the warnings.
    """

    def __init__(self, connection: Any, on_warning: Callable[[str, str], object] | None = None) -> None:
        self._connection = connection
        self._native = CopyData(_functions())
        self._on_warning = on_warning
        self._state = OPEN
        self._failure = ""
        if on_warning is not None:
            self._native.collect_notices(self._address())

    @property
    def arrivals(self) -> int:
        """Number of arrivals of data, including parts of a message."""
        return self._native.arrivals

    def begin(self, query: str | bytes, keep_waiting: Callable[[], bool]) -> bool:
        """Sends a `COPY ... TO STDOUT` and waits until it begins. Returns False if `keep_waiting` became false first.

        Raises:
            psycopg2.Error: if the server refuses the COPY, or the connection is lost.
        """
        if not self._native.send(self._address(), query.encode() if isinstance(query, str) else query):
            raise self._lost()
        self._state = OPEN
        while (result := self._native.result(self._address(), int(_CHECK_SECONDS * 1000))) is None:
            if not keep_waiting():
                return False
        self._listen()
        if result[0] != COPY_OUT:
            self._drain()
            raise _error(result[1], result[2] or "the server answered a COPY query with something else")
        return True

    def take(self, most_bytes: int, first_seconds: float, more_seconds: float) -> pa.Array | None:
        """Returns messages as a binary array, or None if the COPY has ended without an error.

        Args:
            most_bytes: stop reading after this many bytes.
            first_seconds: how long to wait for the first message.
            more_seconds: how long to wait for more messages after the first.

        Raises:
            psycopg2.Error: if the server ended the COPY with an error, or the connection is lost. Messages that arrived
                before are returned first.
        """
        if self._state == OPEN:
            messages, self._state = self._native.take(
                self._address(), most_bytes, _milliseconds(first_seconds), _milliseconds(more_seconds)
            )
            if self._state == FAILED:
                self._failure = self._native.error(self._address())
            self._listen()
            if self._state == OPEN or len(messages):
                return messages
        if self._state == FAILED:
            raise psycopg2.OperationalError(self._failure or "the connection is lost")
        assert self._state == ENDED
        self._drain()
        return None

    def end(self, seconds: float) -> bool:
        """Ends a bidirectional COPY and drops data that still arrive.

        Returns:
            Whether the server answered within `seconds`.

        Raises:
            psycopg2.Error: if the connection is lost, or the COPY ends with an error.
        """
        if not self._native.end(self._address()):
            raise self._lost()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.take(RECEIVED_BYTES, min(left, _CHECK_SECONDS), 0) is None:
                return True
        return False

    def why(self, seconds: float) -> None:
        """Raises the error with which the server ended the COPY, if it arrives within `seconds`; drops data before it.

        Call it when a write of psycopg2 fails: psycopg2 does not know that the COPY has ended, and its error is not
        helpful.

        Raises:
            psycopg2.Error: the server's error, or that the connection is lost.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.take(RECEIVED_BYTES, min(left, _CHECK_SECONDS), 0) is None:
                return

    def _listen(self) -> None:
        if self._on_warning is not None:
            for code, text in self._native.notices():
                self._on_warning(code, text)

    def _drain(self) -> None:
        """Consumes the results at the end of the COPY, so that the connection can be reused."""
        failed: psycopg2.Error | None = None
        deadline = time.monotonic() + 60
        while (result := self._native.result(self._address(), int(_CHECK_SECONDS * 1000))) != (-1, None, ""):
            if result is None:
                if time.monotonic() > deadline:
                    raise psycopg2.OperationalError("the server does not say how the COPY ended")
                continue
            status, code, message = result
            if status not in _GOOD:
                failed = failed or _error(code, message)
                if code is None:
                    break
        if failed is not None:
            raise failed

    def _address(self) -> int:
        address = self._connection.pgconn_ptr
        if address is None:
            raise psycopg2.InterfaceError("the connection is closed already")
        return int(address)

    def _lost(self) -> psycopg2.Error:
        return psycopg2.OperationalError(self._native.error(self._address()) or "the connection is lost")


def _milliseconds(seconds: float) -> int:
    return max(round(seconds * 1000), 0)


def _error(code: str | None, message: str) -> psycopg2.Error:
    """Returns the error that psycopg2 itself would raise."""
    if code is None:
        return psycopg2.OperationalError(message)
    text = _SEVERITY.sub("", message)
    try:
        kind = psycopg2.errors.lookup(code)
    except KeyError:
        kind = psycopg2.DatabaseError
    problem = kind(text)
    problem.__setstate__({"pgcode": code, "pgerror": message})
    return problem
