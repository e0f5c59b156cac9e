"""Checks of a wheel and an sdist of this tree, and the search for an existing wheel of this tree."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from repository import PACKAGE, ROOT, SOURCE

DIST = ROOT / "dist"
# Bytes. docs/installation.md states them. A test compares the installed extensions with the second one.
MOST_PACKED = 3_000_000
MOST_UNPACKED = 8_000_000
MOST_EXTENSIONS = 5_500_000
TAG = "cp311-abi3-manylinux_"
COMPILED = (".pyx", ".pxd", ".hpp")
PURE = (".py", ".pyi")


def wrong_in_wheel(wheel: Path) -> list[str]:
    """Returns a sentence for every fault in a wheel of this tree.

    Args:
        wheel: the file.
    """
    wrong = [] if TAG in wheel.name else [f"its tags are not {TAG}..., but those of {wheel.name}"]
    with zipfile.ZipFile(wheel) as archive:
        entries = {each.filename: each for each in archive.infolist()}
    packed, unpacked = sizes(wheel)
    if packed > MOST_PACKED:
        wrong.append(f"it has {packed:,} bytes; the bound is {MOST_PACKED:,}")
    if unpacked > MOST_UNPACKED:
        wrong.append(f"it has {unpacked:,} bytes unpacked; the bound is {MOST_UNPACKED:,}")
    wanted = {str(path.relative_to(SOURCE).with_suffix(".abi3.so")) for path in PACKAGE.rglob("*.pyx")}
    wanted |= {str(path.relative_to(SOURCE)) for path in _sources(PURE)}
    wanted.add("pgoutput_fast/py.typed")
    # auditwheel adds entries of directories.
    found = {name for name in entries if ".dist-info/" not in name and not name.endswith("/")}
    wrong += [f"it lacks {name}" for name in sorted(wanted - found)]
    wrong += [f"it should not have {name}" for name in sorted(found - wanted)]
    if not any(name.endswith("LICENSE") for name in entries):
        wrong.append("it lacks the license")
    return wrong + [f"{name} is not that of this tree" for name in _changed(entries)]


def wrong_in_sdist(sdist: Path) -> list[str]:
    """Returns a sentence for every fault in an sdist of this tree.

    Args:
        sdist: the file.
    """
    with tarfile.open(sdist) as archive:
        found = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    wanted = {str(path.relative_to(ROOT)) for path in _sources(PURE + COMPILED)}
    wanted |= {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"}
    wanted |= {"src/pgoutput_fast/py.typed", "ci/install.py"}
    wrong = [f"it lacks {name}" for name in sorted(wanted - found)]
    generated = {name for name in found if name.endswith((".cpp", ".so", ".pyc", ".o"))}
    return wrong + [f"it should not have {name}" for name in sorted(generated)]


def sizes(wheel: Path) -> tuple[int, int]:
    """The bytes of a wheel, and of all its files unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        return wheel.stat().st_size, sum(each.file_size for each in archive.infolist())


def is_fresh(wheel: Path) -> bool:
    """Whether a wheel has the code of this tree.

    Python files are compared. Extensions cannot be compared with their sources, so the wheel must be newer than these.
    """
    built = wheel.stat().st_mtime
    sources = [*_sources(COMPILED), ROOT / "setup.py", ROOT / "pyproject.toml"]
    if any(path.stat().st_mtime > built for path in sources):
        return False
    with zipfile.ZipFile(wheel) as archive:
        entries = {each.filename: each for each in archive.infolist()}
    names = {str(path.relative_to(SOURCE)) for path in _sources(PURE)}
    return names <= set(entries) and not list(_changed(entries))


def find_wheel(directory: Path = DIST, python: str = sys.executable) -> Path | None:
    """The newest wheel of this tree that a Python can install. None if there is none.

    Args:
        directory: where the wheels are.
        python: pip of this Python decides which wheels it can install.
    """
    wheels = sorted(
        directory.glob("pgoutput_fast-*.whl"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    return next((each for each in wheels if is_fresh(each) and _is_installable(each, python)), None)


def _is_installable(wheel: Path, python: str) -> bool:
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--no-index"]
    done = subprocess.run([*command, "--ignore-installed", str(wheel)], capture_output=True)
    return done.returncode == 0


def _changed(entries: dict[str, zipfile.ZipInfo]) -> Iterator[str]:
    for path in _sources(PURE):
        name = str(path.relative_to(SOURCE))
        if name in entries and zlib.crc32(path.read_bytes()) != entries[name].CRC:
            yield name


def _sources(suffixes: tuple[str, ...]) -> list[Path]:
    folders = (each for each in SOURCE.iterdir() if each.is_dir() and each.suffix != ".egg-info")
    found = (path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)
    return sorted(found)
