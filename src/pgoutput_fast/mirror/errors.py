"""The errors of a mirror."""

from __future__ import annotations

__all__ = [
    "LOAD_AGAIN",
    "RELOAD",
    "LoadStoppedError",
    "MirrorBusyError",
    "MirrorError",
    "SegmentsGoneError",
    "SlotLostError",
]

RELOAD = "Mirror.reload (--reload)"
LOAD_AGAIN = f"load the table again with {RELOAD}"


class MirrorError(RuntimeError):
    """A mirror cannot begin or go on; the message says why and what to do."""


class LoadStoppedError(MirrorError):
    """A load was told to stop. It must begin again."""


class MirrorBusyError(MirrorError):
    """Another process mirrors into the target."""


class SlotLostError(MirrorError):
    """The slot is gone, or the server has invalidated it. `Mirror.repair` makes another one, and repairs the tables."""


class SegmentsGoneError(MirrorError):
    """Segments that the mirror has not taken yet were removed."""
