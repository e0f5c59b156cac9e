"""What a process that runs nothing but this package does to need less memory and less time.

Call this where the process begins, and nowhere else: a program that imports this package decides for itself.
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

    pyarrow imports pandas, if it is installed, as soon as it makes an array, only to see whether a value comes from
    pandas. That takes 40 MB and half a second. If pandas is imported already, this does nothing.
    """
    if _LEFT_OUT not in sys.modules and _LeftOut not in sys.meta_path:
        sys.meta_path.insert(0, _LeftOut)


def interrupt_nobody() -> None:
    """Lets this process wait for its turn when data come for it. Its threads, and processes that it starts, do so, too.

    A walsender sends each message separately. If it runs on this machine, the system would stop it for each message, to
    let the reader run. Only Linux can be told. Nothing happens if the process has a policy of its own, or may not
    change it.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def own_allocator() -> dict[str, str]:
    """Environment variables that give Arrow the allocator which needs the least memory here.

    Arrow's default, mimalloc, keeps more of what was freed. Arrow reads the variable when it is loaded, so a process
    must have it from its beginning. Let a variable that the user has set win.
    """
    backends = pa.supported_memory_backends()
    return {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"} if "jemalloc" in backends else {}
