"""The errors of a mirror."""

from __future__ import annotations

__all__ = ["LoadStoppedError", "MirrorBusyError", "MirrorError"]


class MirrorError(RuntimeError):
    """A mirror cannot begin or go on; the message says why and what to do."""


class LoadStoppedError(MirrorError):
    """A load was told to stop. It must begin again."""


class MirrorBusyError(MirrorError):
    """Another process mirrors into the target."""
