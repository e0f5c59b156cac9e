"""Errors of a server, or of the connection to it."""

from __future__ import annotations

import psycopg2

from pgoutput_fast.base.errors import LOAD_TABLES

__all__ = ["LOAD_TABLES", "NO_ANSWER", "CaptureError", "SilentError", "StoppedError"]


class CaptureError(RuntimeError):
    """A capture cannot continue; the message says why and what to do."""


class StoppedError(RuntimeError):
    """A stop was requested during a wait for the server."""


NO_ANSWER = (psycopg2.Error, StoppedError, UnicodeDecodeError)
"""The errors of a query that gets no answer, or one that psycopg2 cannot decode, such as names in SQL_ASCII."""


class SilentError(psycopg2.OperationalError):  # type: ignore[misc]
    """A server's operating system acknowledges packets, but the server does not answer: the connection counts as lost.

    Args:
        seconds: time since the server's last answer.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"the server has not answered for {self.args[0]:.0f} s"
