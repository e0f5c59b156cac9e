#!/usr/bin/env python3
"""Install this tree as a wheel, with what an extra needs, into the Python that runs this.

    python ci/install.py EXTRA [--built]

The compiler works while pip downloads and unpacks the requirements, which together takes two minutes on two cores. With
--built, a wheel in dist/ that has these sources is installed, and nothing is compiled.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import install_wheel, read_requirements, run_pip
from repository import ROOT
from wheels import find_wheel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("extra", metavar="EXTRA", help="such as demo or dev")
    parser.add_argument("--built", action="store_true", help="take a wheel of these sources in dist/, if any")
    arguments = parser.parse_args()
    try:
        _install(arguments.extra, find_wheel() if arguments.built else None)
    except subprocess.CalledProcessError as problem:  # pip has said why
        return problem.returncode
    return 0


def _install(extra: str, wheel: Path | None) -> None:
    requirements = read_requirements(extra)
    if wheel is not None:
        print(f"installing {wheel}", flush=True)
        run_pip(sys.executable, "--no-compile", *requirements)
        return install_wheel(sys.executable, wheel)
    # Files that an earlier build left there would get into the wheel.
    for left in (ROOT / "build").glob("lib*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory() as directory:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, "."]
        print("compiling the extensions and installing the requirements (some two minutes)", flush=True)
        with subprocess.Popen(build, cwd=ROOT) as building:
            try:
                # To compile all their modules takes as long as all else that pip does, and few are imported.
                run_pip(sys.executable, "--no-compile", *requirements)
            except BaseException:
                building.terminate()
                raise
        if building.returncode:
            raise subprocess.CalledProcessError(building.returncode, build)
        (built,) = Path(directory).glob("*.whl")
        install_wheel(sys.executable, built)


if __name__ == "__main__":
    sys.exit(main())
