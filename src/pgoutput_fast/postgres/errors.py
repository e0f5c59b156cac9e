"""What a server, or the connection to it, makes impossible."""

from __future__ import annotations

import psycopg2

__all__ = ["CaptureError", "SilentError"]


class CaptureError(RuntimeError):
    """A capture cannot go on; the message says why and what to do."""


class SilentError(psycopg2.OperationalError):  # type: ignore[misc]
    """A server acknowledges what it is sent, and answers nothing: the connection is taken for lost."""
