"""The errors of a mirror."""

from __future__ import annotations

__all__ = ["MirrorBusyError", "MirrorError"]


class MirrorError(RuntimeError):
    """A mirror cannot begin or go on; the message says why and what to do."""


class MirrorBusyError(MirrorError):
    """Another process mirrors into the target."""
