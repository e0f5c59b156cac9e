"""Small disks that tests can fill."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["small_disk"]


@contextmanager
def small_disk(directory: Path, megabytes: int = 5) -> Iterator[Path]:
    """A file system of so many MB below a directory. Skips the test without the privilege to mount one."""
    place = directory / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nobody may mount here")
    try:
        yield place
    finally:
        deadline = time.monotonic() + 60
        # After an error, threads of delta-rs may have files open for a while.
        while subprocess.run(["umount", str(place)], capture_output=True).returncode:
            assert time.monotonic() < deadline, f"{place} is still in use"
            time.sleep(0.05)
