"""Errors of a server, or of the connection to it."""

from __future__ import annotations

import psycopg2

from pgoutput_fast.errors import LOAD_TABLES

__all__ = ["LOAD_TABLES", "CaptureError", "SilentError", "StoppedError"]


class CaptureError(RuntimeError):
    """A capture cannot continue; the message says why and what to do."""


class StoppedError(RuntimeError):
    """Work was told to stop while it waited for an answer of the server."""


class SilentError(psycopg2.OperationalError):  # type: ignore[misc]
    """The system of a server acknowledges packets, but the server answers nothing: the connection counts as lost.

    Args:
        seconds: how long the server has answered nothing.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)

    def __str__(self) -> str:
        return f"the server has answered nothing for {self.args[0]:.0f} s"
