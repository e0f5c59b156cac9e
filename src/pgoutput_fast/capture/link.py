"""A psycopg2 connection whose COPY data are read through its own libpq, without a Python object per message."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa

from pgoutput_fast._core.copydata import (
    COMMAND_OK,
    COPY_OUT,
    ENDED,
    FAILED,
    FUNCTIONS,
    OPEN,
    TUPLES_OK,
    CopyData,
)
from pgoutput_fast.limits import RECEIVED_BYTES

__all__ = ["CopyLink"]

_LOOK_SECONDS = 0.2  # so often somebody who waits is asked whether to go on
_GOOD = (COMMAND_OK, TUPLES_OK)


@functools.cache
def _functions() -> dict[str, int]:
    """Where libpq's functions are: a library's symbols are looked for in what it was linked with, too."""
    library = ctypes.CDLL(psycopg2._psycopg.__file__)
    return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS}


class CopyLink:
    """Reads what a connection sends as COPY data. Meanwhile psycopg2 must not read from it; it may write.

    Args:
        connection: an open psycopg2 connection.
        hear: is called with (SQLSTATE, message) of each warning that the server sends beside the data, before anything
            is given that came with it or behind it. What it raises comes out of the method that was called, and then
            the data are not given. Without it psycopg2 has the warnings.
    """

    def __init__(self, connection: Any, hear: Callable[[str, str], object] | None = None) -> None:
        self._connection = connection
        self._native = CopyData(_functions())
        self._hear = hear
        self._state = OPEN
        self._failure = ""
        if hear is not None:
            self._native.attend(self._address())

    @property
    def arrivals(self) -> int:
        """How often something came, be it a part of a message."""
        return self._native.arrivals

    def begin(self, query: str, wanted: Callable[[], bool]) -> bool:
        """Sends a `COPY ... TO STDOUT` and waits until it begins. False if it was not wanted so long.

        Raises:
            psycopg2.Error: if the server refuses it, or the connection is lost.
        """
        if not self._native.send(self._address(), query.encode()):
            raise self._lost()
        self._state = OPEN
        while (result := self._native.result(self._address(), int(_LOOK_SECONDS * 1000))) is None:
            if not wanted():
                return False
        self._listen()
        if result[0] != COPY_OUT:
            self._drain()
            raise _error(result[1], result[2] or "the server answered a COPY with something else")
        return True

    def take(self, most_bytes: int, first_seconds: float, more_seconds: float) -> pa.Array | None:
        """Messages as a binary array; None if the COPY has ended as it should.

        Args:
            most_bytes: nothing more is read from then on.
            first_seconds: how long the first message is waited for.
            more_seconds: how long others are waited for behind the first.

        Raises:
            psycopg2.Error: if the server ended it with an error, or the connection is lost. What came before is given
                first.
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
        """Ends a COPY in both directions, and drops what still comes. Whether the server has answered in that time.

        Raises:
            psycopg2.Error: if the connection is lost, or ends with an error.
        """
        if not self._native.end(self._address()):
            raise self._lost()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.take(RECEIVED_BYTES, min(left, _LOOK_SECONDS), 0) is None:
                return True
        return False

    def why(self, seconds: float) -> None:
        """Raises what the server ended the COPY with, if it says so in that time. What comes before is dropped.

        To be called when psycopg2 cannot write: it does not know that the COPY has ended, and says nothing of use.

        Raises:
            psycopg2.Error: what the server said, or that the connection is lost.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.take(RECEIVED_BYTES, min(left, _LOOK_SECONDS), 0) is None:
                return

    def _listen(self) -> None:
        if self._hear is not None:
            for code, text in self._native.notices():
                self._hear(code, text)

    def _drain(self) -> None:
        """Takes the results that come at the end, so that the connection can be used again."""
        failed: psycopg2.Error | None = None
        deadline = time.monotonic() + 60
        while (result := self._native.result(self._address(), int(_LOOK_SECONDS * 1000))) != (-1, None, ""):
            if result is None:
                if time.monotonic() > deadline:
                    raise psycopg2.OperationalError("the server does not say how the COPY ended")
                continue
            status, code, said = result
            if status not in _GOOD:
                failed = failed or _error(code, said)
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


def _error(code: str | None, said: str) -> psycopg2.Error:
    """As psycopg2 itself would raise it."""
    if code is None:
        return psycopg2.OperationalError(said)
    try:
        kind = psycopg2.errors.lookup(code)
    except KeyError:
        kind = psycopg2.DatabaseError
    problem = kind(said)
    problem.__setstate__({"pgcode": code, "pgerror": said})
    return problem
