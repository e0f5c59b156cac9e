"""The errors of a capture."""

from __future__ import annotations

from pgoutput_fast.postgres.errors import CaptureError, SilentError

__all__ = [
    "BehindError",
    "CaptureBusyError",
    "CaptureError",
    "MovedOnError",
    "SilentError",
    "UnstorableError",
]


class CaptureBusyError(CaptureError):
    """Another process captures into the directory."""


class BehindError(CaptureError):
    """A standby has not yet replayed everything that the segments have. It may do so soon."""


class UnstorableError(CaptureError):
    """A message is too large for any segment."""


class MovedOnError(CaptureError):
    """Another capture wrote a segment in the meantime. This capture may start again after that segment."""
