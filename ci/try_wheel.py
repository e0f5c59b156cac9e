#!/usr/bin/env python3
"""Install a wheel, and nothing but what it depends on, into new environments of several Pythons, and check it there.

    python ci/try_wheel.py [3.11 3.12 3.13 ...] [--wheel WHEEL]

Without --wheel it takes the wheel of this tree in dist/, and builds one if there is none. In each environment it runs
`check_install.py`: this loads every extension and decodes the example of docs/decoding.md. The environments are
temporary.

The Pythons are those that `python_matrix.py` finds. A Python that it does not find is reported; this is an error if you
asked for that version, or with CI=true.

Exit status: 0 if the wheel works in every environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import wheels
from environments import report, run_pip
from python_matrix import LATER, find_python
from repository import ROOT

VERSIONS = ("3.11", *LATER)


def main() -> int:
    """Try a wheel. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {' '.join(VERSIONS)}")
    parser.add_argument(
        "--wheel", type=Path, help="default: the one in dist/, which is built if it is missing"
    )
    arguments = parser.parse_args()
    wheel = arguments.wheel or wheels.find_wheel()
    if wheel is None:
        subprocess.run([sys.executable, str(ROOT / "ci" / "build_wheel.py")], check=True)
        wheel = wheels.find_wheel()
        if wheel is None:
            raise SystemExit("the wheel that was built is not one that this Python can install")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, unpacked {wheels.sizes(wheel)[1]:,}", flush=True)
    results = {}
    for version in arguments.versions or VERSIONS:
        python = find_python(version)
        if python is None:
            missing = bool(arguments.versions) or os.environ.get("CI") == "true"
            results[version] = (
                not missing,
                f"MISSING: this machine has no Python {version}; nothing was tried",
            )
        else:
            results[version] = try_wheel(wheel.resolve(), python)
    return report("Python", results)


def try_wheel(wheel: Path, python: str) -> tuple[bool, str]:
    """Install a wheel into a new environment and check it. Returns whether it works, and the output of the check.

    Args:
        wheel: the file.
        python: the Python to make the environment with.
    """
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([python, "-m", "venv", place], check=True)
        own = Path(place) / "bin" / "python"
        # Only wheels: nothing may be compiled here.
        run_pip(own, "--only-binary", ":all:", str(wheel))
        run_pip(own, command="check")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(own), str(ROOT / "ci" / "check_install.py")],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return done.returncode == 0, done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
