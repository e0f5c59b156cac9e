"""Back-pressure: while the backlog of the mirror is too large, its capture reads nothing from the server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from pgoutput_fast.capture.process import CaptureProcess

__all__ = ["BACKLOG_BYTES", "Backlog"]

_log = logging.getLogger("pgoutput_fast.mirror")

BACKLOG_BYTES = 4 << 30
# Seconds between checks of the backlog: on a local disk, and in an object store.
_LOCAL_SECONDS, _STORE_SECONDS = 1.0, 5.0


class Backlog:
    """The segments that a mirror has not read yet: a context manager with a thread that pauses the capture.

    The mirror itself cannot watch them: it may spend minutes on a current table or a load.

    Args:
        nbytes: returns their size in bytes.
        local: whether they are on a local disk.
        most: above this many bytes the capture pauses, until half of it is left. None for no limit.
        capture: the capture.

    Attributes:
        is_paused: whether the capture is paused.
    """

    def __init__(
        self, nbytes: Callable[[], int], local: bool, most: int | None, capture: CaptureProcess
    ) -> None:
        self._nbytes, self._most, self._capture = nbytes, most, capture
        self._seconds = _LOCAL_SECONDS if local else _STORE_SECONDS
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pgoutput_fast backlog", daemon=True)
        self.is_paused = False

    def __enter__(self) -> Backlog:
        if self._most is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._most is not None:
            self._thread.join()
        self.is_paused = False

    def _watch(self) -> None:
        while not self._end.wait(self._seconds):
            with suppress(OSError, ValueError):  # the mirror itself reports problems with the directory
                self._check_backlog(self._nbytes())

    def _check_backlog(self, nbytes: int) -> None:
        assert self._most is not None
        if not self.is_paused and nbytes > self._most:
            _log.warning(
                "the mirror has %s bytes of segments still to read, so the capture waits. The server keeps the changes "
                "meanwhile, and its WAL grows",
                f"{nbytes:,}",
            )
            self._set(True)
        elif self.is_paused and nbytes <= self._most // 2:
            _log.info("the mirror has %s bytes of segments still to read: the capture goes on", f"{nbytes:,}")
            self._set(False)

    def _set(self, on: bool) -> None:
        self.is_paused = on
        self._capture.pause(on)
