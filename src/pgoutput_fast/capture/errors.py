"""The errors of a capture."""

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
    """A standby has not yet replayed everything that the segments have. It may do so soon."""


class UnstorableError(CaptureError):
    """A message is too large for any segment."""


class MovedOnError(CaptureError):
    """Another capture wrote a segment in the meantime. This capture may start again after that segment."""


class SilentError(psycopg2.OperationalError):  # type: ignore[misc]
    """The server's system acknowledges packets, but the server answers nothing. The connection counts as lost."""
