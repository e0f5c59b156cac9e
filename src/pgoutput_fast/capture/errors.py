"""What a capture fails with."""

from __future__ import annotations

__all__ = ["CaptureBusyError", "CaptureError", "MovedOnError"]


class CaptureError(RuntimeError):
    """A capture cannot go on; the message says why and what to do."""


class CaptureBusyError(CaptureError):
    """Another process captures into the directory."""


class MovedOnError(CaptureError):
    """Another capture wrote a segment meanwhile; this one may begin again behind it."""
