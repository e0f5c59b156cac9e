"""Who may write: one process at a time, in a directory or in an object store.

In a local directory, the process holds a lock on a file. The operating system releases it when the process ends.

An object store has no locks, and pyarrow has no conditional writes. There, a mark names the process that may write.
This process writes a heartbeat every few seconds into a file of its own, and checks the mark before each commit.
Another process waits for a heartbeat: if one comes, it gives up; after a minute without one, it puts its own mark. If
the process was killed on the same machine, it does not wait.

Several processes may ask at the same time. Each announces itself by a heartbeat, and only then lists the heartbeats. So
of two, at least one sees the other: it waits until the other one has put its mark or has ended. If both see each other,
the one with the greater token gives up.

A process that is suspended for longer than a minute between a check and its commit may still commit. So a commit also
requires the state that the process has read, in the formats that can check it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.storage.stores import Store

__all__ = ["Role", "WriterLease", "lock_file"]

_log = logging.getLogger("pgoutput_fast.storage")

# The period of the heartbeat; and the time without one after which another process may write.
_BEAT_SECONDS, _LEASE_SECONDS = 5.0, 60.0
_POLL_SECONDS, _LOCK_POLL_SECONDS = 0.5, 0.05
# A heartbeat file that is older than another one by this much is of a process that was killed.
_ORPHAN_SECONDS = 86_400.0
# Earlier versions joined segments without heartbeats; their mark counts for this long.
_OLD_MARK_SECONDS = 3600.0

_Process = Mapping[str, Any]


@dataclass(frozen=True)
class Role:
    """What only one process at a time does in a store.

    Attributes:
        does: what it does, before the name of the store: "mirrors into".
        remedy: what to do while another process does it.
        again: what to do after somebody removed the mark.
        error: the class of errors because of another process.
        lock: the file to lock in a local directory.
        mark: the file that names the process in an object store.
        heartbeats: the directory of heartbeats in an object store.
    """

    does: str
    remedy: str
    again: str
    error: type[Exception]
    lock: str
    mark: str
    heartbeats: str


class WriterLease:
    """The right of this process to write into a store. A context manager acquires and releases it.

    Args:
        store: the store.
        role: what the process does there.
        seconds: the time without a heartbeat after which another process may write.
        wait_seconds: how long the context manager waits for a process that has the right.
    """

    def __init__(
        self, store: Store, role: Role, seconds: float = _LEASE_SECONDS, wait_seconds: float = 0.0
    ) -> None:
        self._store, self._role, self._seconds, self._wait_seconds = store, role, seconds, wait_seconds
        self._token = secrets.token_hex(16)
        self._file: IO[str] | None = None
        self._heartbeat: _Heartbeat | None = None

    def __enter__(self) -> WriterLease:
        self.acquire(wait_seconds=self._wait_seconds)
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def acquire(self, *, takeover: bool = False, wait_seconds: float = 0.0) -> None:
        """Acquires the lease. In a store, this waits while it is unknown whether another process is alive.

        Args:
            takeover: in a store, whether to end the lease of a process that is alive. Only for a process with a proof
                that the other one may not write any more.
            wait_seconds: how long to wait for a process that has it.

        Raises:
            Exception: the role's error, if another process has the lease.
            OSError: if the store cannot be reached or written.
            ValueError: if the mark is damaged.
        """
        if self._store.local:
            self._lock(wait_seconds)
        elif takeover:
            self._put_mark()
        else:
            self._ask_again(wait_seconds)

    def check(self) -> None:
        """Checks that no other process has taken the lease. Nobody can take a lock.

        Raises:
            Exception: the role's error, if one has.
            OSError: if the store cannot be reached.
        """
        if self._store.local:
            return
        try:
            writer = self._writer()
        except ValueError:
            raise self._role.error(f"{self._mark} is damaged: {self._role.again}") from None
        if writer is None:
            raise self._role.error(
                f"somebody removed {self._mark}, which ensures that only one process writes: {self._role.again}"
            )
        if writer["token"] != self._token:
            silent = f", because this process wrote no heartbeat for {self._seconds:.0f} seconds"
            raise self._role.error(
                f"{self._described(writer)} now{silent if self._heartbeat else ''}. This process ends"
            )

    def release(self) -> None:
        """Gives the lease back. A mark of a takeover stays: the next process may be about to replace it."""
        if self._file is not None:
            with suppress(OSError):
                self._file.truncate(0)
            self._file.close()
            self._file = None
        if self._heartbeat is not None:
            self._heartbeat.end()
            self._heartbeat = None
            # Without the store, the marks stay, and count as those of a process that has ended.
            with suppress(Exception):
                writer = self._writer()
                if writer is not None and writer["token"] == self._token:
                    self._store.remove(self._role.mark)
            with suppress(Exception):
                self._store.remove(f"{self._role.heartbeats}/{self._token}")

    # ---- a local directory ---------------------------------------------------------------------------------------

    def is_locked(self) -> bool:
        """Whether a process has the lock in a local directory. If another user made its file, one may have it."""
        try:
            with open(self._store.at(self._role.lock), "r+") as file:
                return not _try_lock(file)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True

    def _lock(self, wait_seconds: float) -> None:
        if self._file is not None:
            return
        self._file = lock_file(Path(self._store.at(self._role.lock)), wait_seconds)
        if self._file is None:
            raise self._role.error(f"another process {self._role.does} {self._store}: {self._role.remedy}")
        with suppress(OSError):  # for people only
            self._file.truncate(0)
            self._file.write(f"{os.getpid()} since {_time_text(time.time())}\n")
            self._file.flush()

    # ---- an object store -----------------------------------------------------------------------------------------

    @property
    def _mark(self) -> str:
        return f"{self._store}/{self._role.mark}"

    def _described(self, process: _Process) -> str:
        since = process.get("since") or _time_text(process.get("at", 0))
        return (
            f"process {process['pid']} on {process['host']} (since {since}) {self._role.does} {self._store}"
        )

    def _writer(self) -> _Process | None:
        """The process that the mark names; None without a mark.

        Raises:
            ValueError: if it is damaged.
        """
        try:
            writer = parsed_json(self._store.read(self._role.mark))
        except FileNotFoundError:
            return None
        except ValueError:
            writer = None
        if not isinstance(writer, dict) or not {"token", "host", "pid"} <= writer.keys():
            raise ValueError(
                f"{self._mark} is damaged: remove it, if no other process {self._role.does} {self._store}"
            )
        return writer

    def _put_mark(self) -> None:
        self._store.put(self._role.mark, _content(_this_process(self._token)))

    def _ask_again(self, wait_seconds: float) -> None:
        """Asks until no other process has the lease or asks for it.

        Two processes that would go on asking would wait for each other. So each asks from the beginning.
        """
        until = time.monotonic() + wait_seconds
        while True:
            try:
                return self._ask()
            except self._role.error:
                if time.monotonic() >= until:
                    raise
            time.sleep(_POLL_SECONDS * (1 + secrets.randbelow(1000) / 1000))

    def _ask(self) -> None:
        """Announces this process, waits until no other one writes or asks with a lesser token, and puts the mark."""
        # A heartbeat that an earlier attempt did not wait for has another name.
        self._token = secrets.token_hex(16)
        name = f"{self._role.heartbeats}/{self._token}"
        self._heartbeat = _Heartbeat(self._store, name, self._token, min(_BEAT_SECONDS, self._seconds / 4))
        watched: dict[str, tuple[bytes, float]] = {}
        try:
            self._heartbeat.begin()
            while self._must_wait(self._heartbeat, watched):
                time.sleep(min(_POLL_SECONDS, self._seconds / 10))
            self._put_mark()
            self._heartbeat.asks = False
            self.check()
        except BaseException:
            self.release()
            raise

    def _must_wait(self, own: _Heartbeat, watched: dict[str, tuple[bytes, float]]) -> bool:
        """Whether another process that writes, or asks to, may be alive.

        Args:
            own: the heartbeat of this process.
            watched: token -> (heartbeat, the time when its process counts as dead), kept from call to call.

        Raises:
            Exception: the role's error, if the writer is alive, or a process that asks and has a lesser token.
        """
        # Before the mark: a process that does not ask any more has put its mark.
        heartbeats = self._heartbeats()
        if heartbeats.pop(self._token, None) is None:  # somebody took this process for dead
            own.beat()
            return True
        writer = self._writer()
        if writer is not None and writer["token"] not in heartbeats:
            self._expect_old(writer)
        waits = False
        for token, content in heartbeats.items():
            writes = writer is not None and writer["token"] == token
            process = writer if writes else _asking(content)
            if process is None:
                continue
            before, until = watched.get(token, (None, math.inf))
            if _is_dead_here(process) or (content == before and time.monotonic() > until):
                self._store.remove(f"{self._role.heartbeats}/{token}")
                continue
            if before is None:
                _log.info("waiting for the next heartbeat: %s", self._described(process))
            elif content != before and (writes or token < self._token):
                raise self._role.error(f"{self._described(process)}: {self._role.remedy}")
            if content != before:
                watched[token] = content, time.monotonic() + self._seconds
            waits = True
        return waits

    def _heartbeats(self) -> dict[str, bytes]:
        """token -> content. Removes files of processes that were killed long ago."""
        entries = self._store.entries(self._role.heartbeats)
        newest = max((entry.modified for entry in entries), default=0.0)
        contents = {}
        for entry in entries:
            if newest - entry.modified > _ORPHAN_SECONDS:
                self._store.remove(entry.name)
                continue
            with suppress(FileNotFoundError):
                contents[entry.name.rpartition("/")[2]] = self._store.read(entry.name)
        return contents

    def _expect_old(self, writer: _Process) -> None:
        """Expects that a process without a heartbeat has ended, or that it is of an earlier version and too old.

        Raises:
            Exception: the role's error, if it may be alive.
        """
        at = writer.get("at")
        if "machine" not in writer and isinstance(at, int | float) and at > time.time() - _OLD_MARK_SECONDS:
            raise self._role.error(
                f"{self._described(writer)}: {self._role.remedy}. If it was killed, remove {self._mark}"
            )


class _Heartbeat:
    """Writes the heartbeat of this process.

    Args:
        store: the store.
        name: the file.
        token: the token of the lease.
        seconds: the period.

    Attributes:
        asks: whether the process has not put its mark yet.
    """

    def __init__(self, store: Store, name: str, token: str, seconds: float) -> None:
        self._store, self._name, self._seconds = store, name, seconds
        self._process = _this_process(token)
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.asks = True

    def begin(self) -> None:
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        self._count += 1
        process = {**self._process, "asks": self.asks, "count": self._count}
        self._store.put(self._name, _content(process))

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_BEAT_SECONDS)  # without the store, a heartbeat takes long

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            with suppress(Exception):  # the store cannot be reached; the writer notices by itself
                self.beat()
                if self._ended.is_set():  # nobody has waited for this one
                    self._store.remove(self._name)


def lock_file(path: Path, wait_seconds: float = 0.0) -> IO[str] | None:
    """Creates and locks a file. Closing it, or the end of the process, releases the lock.

    Args:
        path: the file. A missing directory is created in an existing one.
        wait_seconds: how long to wait for the lock.

    Returns:
        The file, or None if another process has the lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     first, second = lock_file(Path(directory, "lock")), lock_file(Path(directory, "lock"))
    ...     first.close()
    >>> second is None
    True
    """
    until = time.monotonic() + wait_seconds
    while True:
        path.parent.mkdir(exist_ok=True)
        file = open(path, "a+")  # noqa: SIM115
        if _try_lock(file):
            # A process that could not begin removes its lock file. A lock on that file excludes nobody.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
            file.close()
            continue
        file.close()
        if time.monotonic() >= until:
            return None
        time.sleep(_LOCK_POLL_SECONDS)


def _try_lock(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _this_process(token: str) -> _Process:
    now = time.time()
    return {
        "token": token,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": _machine(),
        "since": _time_text(now),
        "at": now,
    }


def _content(process: _Process) -> bytes:
    """The content of a mark or heartbeat: of one size, because readers ask a store for the size first."""
    return json.dumps(process).encode().ljust(1024)


def _time_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def _machine() -> str | None:
    """Names the scope of a process number: the boot of this machine, and its container. None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _asking(heartbeat: bytes) -> _Process | None:
    """The process of a heartbeat, if it has not put its mark yet. Those of earlier versions do not say it."""
    with suppress(ValueError):
        process = parsed_json(heartbeat)
        if isinstance(process, dict) and {"token", "host", "pid"} <= process.keys() and process.get("asks"):
            return process
    return None


def _is_dead_here(process: _Process) -> bool:
    """Whether a process ran on this machine, and has ended."""
    if process.get("machine") is None or process["machine"] != _machine():
        return False
    try:
        os.kill(int(process["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
