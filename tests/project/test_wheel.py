"""What becomes a wheel and an sdist: all sources, nothing generated, within the bounds that docs/installation.md states.

`make wheel` checks the same of the files that it builds, and `make test-wheel` installs the wheel and decodes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import check_install
import pgoutput_fast
import wheels
from support.paths import DOCS, ROOT, SOURCE

PAGE = DOCS / "installation.md"
TAGS = "cp311-abi3-manylinux_2_17_x86_64"
FIRST = "pgoutput_fast/_core/bench.abi3.so"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def _write_wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def _wheel_files() -> dict[str, bytes]:
    """What a wheel of this tree has. Its extensions are empty files: nothing here loads them."""
    files = {
        str(path.relative_to(SOURCE)): path.read_bytes()
        for path in SOURCE.rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    for path in SOURCE.rglob("*.pyx"):
        files[str(path.relative_to(SOURCE).with_suffix(".abi3.so"))] = b""
    files |= {"pgoutput_fast/": b"", "pgoutput_fast/py.typed": b""}
    info = "pgoutput_fast-0.1.0.dist-info"
    files[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: pgoutput_fast\nVersion: 0.1.0\n"
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAGS}\n".encode()
    files[f"{info}/RECORD"] = b""
    files[f"{info}/licenses/LICENSE"] = b""
    return files


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(place)]
    subprocess.run([*command, "sdist", "--dist-dir", str(place)], cwd=ROOT, check=True, capture_output=True)
    (found,) = place.glob("*.tar.gz")
    return found


def test_the_sdist_has_all_sources_and_nothing_generated(sdist: Path) -> None:
    assert wheels.wrong_in_sdist(sdist) == []


def test_an_sdist_that_lacks_a_source_is_found(sdist: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tar.gz"
    with tarfile.open(sdist) as before, tarfile.open(other, "w:gz", compresslevel=1) as after:
        for each in before.getmembers():
            if each.name.endswith("/buffer.hpp"):
                each.name = each.name.replace("buffer.hpp", "buffer.cpp")
            after.addfile(each, before.extractfile(each) if each.isfile() else None)
    assert wheels.wrong_in_sdist(other) == [
        "it lacks src/pgoutput_fast/_core/columns/buffer.hpp",
        "it should not have src/pgoutput_fast/_core/columns/buffer.cpp",
    ]


def test_a_wheel_of_this_tree_is_right(tmp_path: Path) -> None:
    wheel = _write_wheel(tmp_path / f"pgoutput_fast-0.1.0-{TAGS}.whl", _wheel_files())
    assert wheels.wrong_in_wheel(wheel) == []


def test_what_is_wrong_with_a_wheel_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _wheel_files()
    del files[FIRST]
    files["pgoutput_fast/_core/bench.cpp"] = b""
    files["pgoutput_fast/base/errors.py"] += b"\n"
    wheel = _write_wheel(tmp_path / "pgoutput_fast-0.1.0-cp311-cp311-linux_x86_64.whl", files)
    monkeypatch.setattr(wheels, "MOST_PACKED", wheel.stat().st_size - 1)
    monkeypatch.setattr(wheels, "MOST_UNPACKED", wheels.sizes(wheel)[1])
    tags, packed, *others = wheels.wrong_in_wheel(wheel)
    assert tags.startswith("its tags are not cp311-abi3-manylinux_")
    assert packed.endswith(f"the bound is {wheel.stat().st_size - 1:,}")
    assert others == [
        f"it lacks {FIRST}",
        "it should not have pgoutput_fast/_core/bench.cpp",
        "pgoutput_fast/base/errors.py is not that of this tree",
    ]


@pytest.mark.slow
def test_a_wheel_of_other_sources_or_another_system_is_not_used(tmp_path: Path) -> None:
    """`make demo` installs what `find_wheel` finds, so a wheel that only looks right must not be found."""
    files = _wheel_files()
    assert wheels.find_wheel(tmp_path) is None
    _write_wheel(tmp_path / "pgoutput_fast-0.1.0-cp311-abi3-win_amd64.whl", files)
    assert wheels.find_wheel(tmp_path) is None
    # This file has the tag of any system, so that the test holds everywhere.
    wheel = _write_wheel(tmp_path / "pgoutput_fast-0.1.0-py3-none-any.whl", files)
    assert wheels.find_wheel(tmp_path) == wheel
    os.utime(wheel, (1, 1))
    assert wheels.find_wheel(tmp_path) is None
    files["pgoutput_fast/base/errors.py"] += b"\n"
    _write_wheel(wheel, files)
    assert wheels.find_wheel(tmp_path) is None


@pytest.mark.unsanitized
def test_the_installed_extensions_are_within_their_bound() -> None:
    place = Path(pgoutput_fast.__file__).parent
    files = list(place.rglob("*.so"))
    assert len(files) == len(list(SOURCE.rglob("*.pyx")))
    assert sum(each.stat().st_size for each in files) < wheels.MOST_EXTENSIONS < wheels.MOST_UNPACKED


@pytest.mark.unsanitized
def test_the_import_loads_few_modules() -> None:
    modules, _ = check_install.import_cost()
    assert 50 < modules <= check_install.MOST_MODULES


def test_the_check_of_an_installation_runs_an_example_and_every_extension() -> None:
    assert check_install.run_example()
    assert len(check_install.load_extensions()) == len(list(SOURCE.rglob("*.pyx")))


def test_the_stable_abi_is_that_of_the_oldest_python(project: dict[str, Any]) -> None:
    oldest = project["project"]["requires-python"].removeprefix(">=")
    number = int(oldest.removeprefix("3."))
    built = (ROOT / "setup.py").read_text()
    assert f'("Py_LIMITED_API", "0x03{number:02x}0000")' in built
    assert f'"py_limited_api": "cp3{number}"' in built
    assert wheels.TAG.startswith(f"cp3{number}-abi3-")
    assert project["tool"]["cibuildwheel"]["build"] == f"cp3{number}-*"


def test_cibuildwheel_builds_and_checks_abi3_wheels_everywhere(project: dict[str, Any]) -> None:
    """macOS has an environment of its own, which replaces the common one."""
    configured = project["tool"]["cibuildwheel"]
    tested = configured["test-command"].removeprefix("python {project}/")
    assert (ROOT / tested).samefile(check_install.__file__)
    for table in (configured, configured["macos"]):
        assert table["environment"]["PGOUTPUT_FAST_ABI3"] == "1"
    assert {each for system in ("linux", "macos") for each in configured[system]["archs"]} == {
        "x86_64",
        "aarch64",
        "arm64",
    }


def test_the_page_names_every_extra_and_every_bound(project: dict[str, Any]) -> None:
    page = PAGE.read_text()
    extras = re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)
    assert sorted(extras) == sorted(project["project"]["optional-dependencies"])
    for bound in (wheels.MOST_PACKED, wheels.MOST_UNPACKED, wheels.MOST_EXTENSIONS):
        assert f"{bound / 1e6:g} MB" in page
    assert f"{check_install.MOST_MODULES} modules" in page
