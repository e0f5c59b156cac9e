"""What a capture fails with."""

from __future__ import annotations

import psycopg2

__all__ = [
    "BehindError",
    "CaptureBusyError",
    "CaptureError",
    "MovedOnError",
    "SilentError",
    "UnstorableError",
]


class CaptureError(RuntimeError):
    """A capture cannot go on; the message says why and what to do."""


class CaptureBusyError(CaptureError):
    """Another process captures into the directory."""


class BehindError(CaptureError):
    """A standby has not replayed yet what segments have; it may do so soon."""


class UnstorableError(CaptureError):
    """A message that no segment has room for."""


class MovedOnError(CaptureError):
    """Another capture wrote a segment meanwhile; this one may begin again behind it."""


class SilentError(psycopg2.OperationalError):  # type: ignore[misc]
    """A server acknowledges what it is sent, and answers nothing: the connection is taken for lost."""
