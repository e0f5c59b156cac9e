"""Background work of a test, during a with block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Background"]


class Background(ABC):
    """Work in a thread, started by a with block, and told to stop at its end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Works until `_stop` is set."""
