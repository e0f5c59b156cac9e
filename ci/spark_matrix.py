#!/usr/bin/env python3
"""Run the Spark tests on each supported version of Spark, each in an environment of its own.

    python ci/spark_matrix.py [--source] [VERSION ...] [-- PYTEST ARGUMENTS]

The environments are `.venv-spark-VERSION`. The script makes missing ones and keeps them. Each has the pyarrow and the
pandas that its Spark was released for. The oldest Spark gets the oldest pyarrow and pandas that this package supports.
The script builds the package once as a wheel and installs it in each environment. With --source the tests see `src/`
instead, as it was compiled in place.

Exit status: 0 if all tests passed everywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "pgoutput_fast"
SPARKS = {
    "4.0": ("pyspark==4.0.*", "pyarrow==18.1.*", "pandas==2.2.*"),
    "4.1": ("pyspark==4.1.*", "pyarrow==21.*", "pandas==2.3.*"),
    "4.2": ("pyspark==4.2.*", "pyarrow==22.*", "pandas==2.3.*"),
    "4.3": ("pyspark==4.3.*",),
}
TESTS = "pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100"
# These Spark versions leave it to the garbage collector to close sockets, and Python warns about that.
IGNORED = "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"


def main() -> int:
    own, given = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, given = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help=f"one of {', '.join(SPARKS)}; default: all"
    )
    parser.add_argument("--source", action="store_true", help="test src/ instead of a wheel")
    arguments = parser.parse_args(own)
    unknown = sorted(set(arguments.versions) - set(SPARKS))
    if unknown:
        parser.error(f"unknown Spark version {', '.join(unknown)}; known versions: {', '.join(SPARKS)}")
    with tempfile.TemporaryDirectory() as directory:
        wheel = None if arguments.source else _wheel(Path(directory))
        results = {version: _run(version, wheel, given) for version in arguments.versions or SPARKS}
    for version, (passed, said) in results.items():
        print(f"Spark {version}: {said}", "" if passed else "FAILED", flush=True)
    return 0 if all(passed for passed, _ in results.values()) else 1


def _wheel(directory: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(directory),
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def _run(version: str, wheel: Path | None, given: list[str]) -> tuple[bool, str]:
    """Run the tests on one Spark version. Returns whether they passed, and pytest's last line."""
    python = _environment(version)
    environment = dict(os.environ)
    if wheel is None:
        environment["PYTHONPATH"] = str(ROOT / "src")
    else:
        _pip(python, "--no-deps", "--force-reinstall", str(wheel))
    tests = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "spark").glob("test_*.py"))
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    command += [argument for each in IGNORED for argument in ("-W", each)]
    print(f"Spark {version} ...", flush=True)
    begun = time.monotonic()
    done = subprocess.run(
        [*command, *(given or tests)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        print(done.stdout, flush=True)
    lines = done.stdout.strip().splitlines()
    return (
        done.returncode == 0,
        f"{lines[-1] if lines else 'no output'} [{time.monotonic() - begun:.0f} s]",
    )


def _environment(version: str) -> Path:
    """The Python of an environment. Makes the environment, or updates it if its requirements have changed."""
    place = ROOT / f".venv-spark-{version}"
    python, stamp = place / "bin" / "python", place / "requirements.txt"
    wanted = "\n".join([*SPARKS[version], *_requirements("demo"), *TESTS])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {' '.join(SPARKS[version])} ...", flush=True)
        if not python.exists():
            venv.create(place, with_pip=True)
        _pip(python, *wanted.splitlines())
        stamp.write_text(wanted)
    return python


def _pip(python: Path, *what: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *what], check=True)


def _requirements(extra: str) -> list[str]:
    """The requirements of the package with an extra. Extras that refer to the package itself are expanded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = list(project["dependencies"])
    for each in project["optional-dependencies"][extra]:
        own = re.fullmatch(rf"{NAME}\[(.+)\]", each)
        if own is None:
            found.append(each)
        else:
            found += [line for name in own[1].split(",") for line in _requirements(name.strip())]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
