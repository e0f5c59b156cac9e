"""What a capture fails with."""

from __future__ import annotations

__all__ = ["BehindError", "CaptureBusyError", "CaptureError", "MovedOnError", "UnstorableError"]


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
