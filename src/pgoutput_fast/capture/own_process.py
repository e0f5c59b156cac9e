"""Savings of memory and time for a process that runs only this package.

Call these functions at the start of the process, and nowhere else: a program that imports this package decides for
itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

__all__ = ["interrupt_nobody", "leave_out_pandas", "own_allocator"]

_LEFT_OUT = "pandas"


class _LeftOut:
    """Finds no pandas, as if it were not installed."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """
        Raises:
            ModuleNotFoundError: for pandas.
        """
        if name == _LEFT_OUT:
            raise ModuleNotFoundError(f"this process runs without {name}", name=name)
        return None


def leave_out_pandas() -> None:
    """Lets this process run without pandas.

    If pandas is installed, pyarrow imports it as soon as it makes an array, only to check whether a value comes from
    pandas. That takes 40 MB and half a second. If pandas is already imported, this does nothing.
    """
    if _LEFT_OUT not in sys.modules and _LeftOut not in sys.meta_path:
        sys.meta_path.insert(0, _LeftOut)


def interrupt_nobody() -> None:
    """Lets this process wait for its turn when data arrive for it. Its threads and child processes inherit this.

    A walsender sends messages one by one. If it runs on this machine, the kernel would preempt it for each message to
    let the reader run. Only Linux supports this setting. Nothing happens if the process has its own scheduling policy,
    or may not change it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def own_allocator() -> dict[str, str]:
    """Returns environment variables that give Arrow the allocator with the least memory usage here.

    Arrow's default, mimalloc, keeps more freed memory. Arrow reads the variable when it is loaded, so it must be set
    when the process starts. A variable that the user has set should take precedence.
    """
    backends = pa.supported_memory_backends()
    return {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"} if "jemalloc" in backends else {}
