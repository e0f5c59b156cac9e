"""Errors of tables, and what to do about them."""

from __future__ import annotations

from pgoutput_fast.base.errors import LOAD

__all__ = [
    "LOAD_AGAIN",
    "LOAD_ANY_AGAIN",
    "RELOAD",
    "CatalogAwayError",
    "CatalogError",
    "MirrorBusyError",
    "MirrorError",
]

# The method, and the command that does the same.
RELOAD = "Mirror.reload (pgoutput-fast mirror ... --reload)"
LOAD_AGAIN = f"load the table again with {RELOAD}"
# The same if the owner of the table is unknown.
LOAD_ANY_AGAIN = (
    f"load the table again (in a mirror: {RELOAD}; with current_sink: a new checkpoint and another target; a table of "
    f"your own: {LOAD})"
)


class MirrorError(RuntimeError):
    """A mirror cannot begin or go on; the message says why and what to do."""


class MirrorBusyError(MirrorError):
    """Another process mirrors into the target."""


class CatalogError(RuntimeError):
    """The catalog of Iceberg tables refuses."""


class CatalogAwayError(ConnectionError):
    """The catalog of Iceberg tables cannot be reached, or fails in a way that may pass."""
