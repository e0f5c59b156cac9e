"""The errors of a mirror."""

from __future__ import annotations

from pgoutput_fast.tables.errors import MirrorError

__all__ = ["LoadStoppedError", "MirrorSegmentsGoneError", "SlotLostError"]


class LoadStoppedError(MirrorError):
    """A load was told to stop. It must begin again."""


class SlotLostError(MirrorError):
    """The slot is gone, or the server has invalidated it. `Mirror.repair` makes another one, and repairs the tables."""


class MirrorSegmentsGoneError(MirrorError):
    """Segments that the mirror has not taken yet were removed."""
