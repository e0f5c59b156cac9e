"""The errors of a capture."""

from __future__ import annotations

from pgoutput_fast.postgres.errors import LOAD_TABLES, CaptureError, SilentError

__all__ = [
    "CANNOT_GO_ON",
    "LOAD_TABLES",
    "NEW_SLOT",
    "START_OVER",
    "AwayError",
    "BehindError",
    "CaptureBusyError",
    "CaptureError",
    "MovedOnError",
    "OwnEncodingError",
    "SilentError",
    "UnstorableError",
]

# The remedy if a slot cannot deliver all changes after the segments.
START_OVER = f"Create a new slot, {LOAD_TABLES}, and capture into another directory"
# The remedy if a publication was missing.
NEW_SLOT = f"Drop the slot and create the publication first. {START_OVER}"
# Phrases in errors after which a slot can never continue: a change without its publication, a message that is too
# large.
CANNOT_GO_ON = ("has changes from a time when a publication did not exist", "Another try does not help")


class CaptureBusyError(CaptureError):
    """Another process captures into the directory."""


class AwayError(CaptureError):
    """A capture ended because the server or the store was unavailable, or its process was killed. It can be restarted.

    Attributes:
        tried_seconds: how long it has tried, at most.
    """

    tried_seconds = 0.0


class BehindError(CaptureError):
    """A standby has not yet replayed everything in the segments. It may do so soon."""


class OwnEncodingError(CaptureError):
    """The server cannot send a text in UTF-8. The next connection requests the encoding of the database."""


class UnstorableError(CaptureError):
    """A message is too large for any segment."""


class MovedOnError(CaptureError):
    """Another capture wrote a segment in the meantime. This capture may restart after that segment."""
