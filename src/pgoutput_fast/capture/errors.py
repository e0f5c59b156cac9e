"""The errors of a capture."""

from __future__ import annotations

from pgoutput_fast.postgres.errors import CaptureError, SilentError

__all__ = [
    "START_OVER",
    "BehindError",
    "CaptureBusyError",
    "CaptureError",
    "MovedOnError",
    "SilentError",
    "UnstorableError",
]

# What to do when a slot cannot give all changes after the segments.
START_OVER = "Create a new slot, load the tables again, and capture into another directory"


class CaptureBusyError(CaptureError):
    """Another process captures into the directory."""


class BehindError(CaptureError):
    """A standby has not yet replayed everything that the segments have. It may do so soon."""


class UnstorableError(CaptureError):
    """A message is too large for any segment."""


class MovedOnError(CaptureError):
    """Another capture wrote a segment in the meantime. This capture may start again after that segment."""
