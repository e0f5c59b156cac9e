"""A process that keeps a snapshot open for others: `python -m pgoutput_fast.snapshot.holder`.

The process reads its task as a line of JSON and answers with a line of JSON, and the requester confirms the answer.
Then the process lives until its timeout, or until the process that it serves has ended. Before the confirmation it also
ends with the requester, and drops the slot. Requests of one application for the same slot get the same snapshot.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.snapshot.export import SnapshotError, export_snapshot

__all__ = ["OpenSnapshot", "hold_snapshot"]

_LOOK_SECONDS = 1.0
_TAKEN = "taken\n"


@dataclass(frozen=True)
class OpenSnapshot:
    """A snapshot held by another process.

    Attributes:
        name: the name for `SET TRANSACTION SNAPSHOT`.
        consistent_lsn: the snapshot has all commits before this LSN.
        slot: the slot that begins there.
        pid: id of the process.
        started: start time of the process, from `started_at`. A later process with the same pid has another value.
    """

    name: str
    consistent_lsn: int
    slot: str
    pid: int
    started: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the process is still running."""
        return is_alive(self.pid) and self.started != "" and started_at(self.pid) == self.started

    def release(self) -> None:
        """Ends the process, and the snapshot with it."""
        if not self.is_held:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def hold_snapshot(dsn: str, slot: str | None, seconds: float, for_pid: int | None) -> OpenSnapshot:
    """Starts a process that exports a snapshot and holds it.

    Args:
        dsn: of the database.
        slot: the slot to create. If a process already holds this slot's snapshot for `for_pid`, that snapshot is
            returned.
        seconds: maximum time to hold the snapshot, including the wait for open transactions.
        for_pid: id of the process that is served: the holder ends with it. None for no such process.

    Raises:
        SnapshotError: if the slot exists and no process holds its snapshot, or if the time ran out before the snapshot
            existed.
        RuntimeError: if the process failed, with the reason.
    """
    if slot is None:
        return _start(dsn, slot, seconds, for_pid)
    with _registered(dsn, slot, for_pid) as file:
        known = file.read()
        if known:
            snapshot = OpenSnapshot(**parsed_json(known))
            if snapshot.is_held:
                return snapshot
        snapshot = _start(dsn, slot, seconds, for_pid)
        file.seek(0)
        file.truncate()
        file.write(json.dumps(asdict(snapshot)))
        return snapshot


def _registered(dsn: str, slot: str, for_pid: int | None) -> IO[str]:
    """Returns the file that names the holder of a slot's snapshot. The file is locked until you close it."""
    directory = Path(tempfile.gettempdir()) / f"pgoutput_fast-{getpass.getuser()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise RuntimeError(
            f"{directory} belongs to another user: remove it, or set TMPDIR to another directory"
        )
    of = None if for_pid is None else started_at(for_pid)
    key = hashlib.sha256(f"{dsn}\0{slot}\0{for_pid}\0{of}".encode()).hexdigest()[:32]
    file = open(directory / f"{key}.json", "a+")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    return file


def _start(dsn: str, slot: str | None, seconds: float, for_pid: int | None) -> OpenSnapshot:
    process = subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast.snapshot.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # it survives an interrupt of the requester
    )
    assert process.stdin is not None
    assert process.stdout is not None
    task = {"dsn": dsn, "slot": slot, "seconds": seconds, "for_pid": for_pid}
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        message = process.stdout.readline()
        with contextlib.suppress(BrokenPipeError):  # it has failed; its answer has the reason
            # Unbuffered: closing a buffer would write it again.
            os.write(process.stdin.fileno(), _TAKEN.encode())
    # The child of this process holds the snapshot.
    code = process.wait()
    if not message:
        raise RuntimeError(f"the process for the snapshot ended with status {code}: try again")
    answer = parsed_json(message)
    if "error" in answer:
        raise (SnapshotError if answer["refused"] else RuntimeError)(answer["error"])
    return OpenSnapshot(**answer)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _field(pid, "stat") != "Z"


def started_at(pid: int) -> str | None:
    """Returns the start time of a process, in the system's units; None if there is no such process.

    The start time and the pid identify a process uniquely.
    """
    started = _field(pid, "lstart")
    try:
        # Linux counts from boot.
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}" if started else None
    except OSError:
        return started


def java_above() -> int | None:
    """Returns the pid of the Java virtual machine above this process, None if there is none."""
    pid = os.getpid()
    for _ in range(10):
        parent = _field(pid, "ppid")
        if parent is None or int(parent) <= 1:
            return None
        pid = int(parent)
        if os.path.basename(_field(pid, "comm") or "").startswith("java"):
            return pid
    return None


def _field(pid: int, name: str) -> str | None:
    """Returns a property of a process: `stat` (one letter), `ppid`, `lstart` or `comm`."""
    try:
        # The name is in parentheses, and may contain parentheses.
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        values = rest.split()
        known = {"stat": values[0], "ppid": values[1], "lstart": values[19], "comm": head.partition("(")[2]}
        return known[name]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        found = subprocess.run(["ps", "-o", f"{name}=", "-p", str(pid)], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    message = found.stdout.strip()
    return (message[:1] if name == "stat" else message) or None


def main() -> None:
    task: dict[str, Any] = parsed_json(sys.stdin.readline())
    if os.fork():
        # The parent ends, so the requester has no child process left.
        os._exit(0)
    deadline = time.monotonic() + task["seconds"]
    for_pid = task["for_pid"]
    of = None if for_pid is None else started_at(for_pid)

    def keep_waiting() -> bool:
        is_wanted = for_pid is None or (is_alive(for_pid) and started_at(for_pid) == of)
        return time.monotonic() < deadline and is_wanted

    try:
        # The requester sends nothing before the answer, so readable input means that it is gone.
        holder = export_snapshot(
            task["dsn"], task["slot"], keep_waiting=lambda: keep_waiting() and not _can_read(sys.stdin, 0)
        )
    except Exception as problem:
        message = str(problem).strip() or type(problem).__name__
        print(json.dumps({"error": message, "refused": isinstance(problem, SnapshotError)}), flush=True)
        return
    export = holder.export
    snapshot = OpenSnapshot(
        export.name, export.consistent_lsn, export.slot, os.getpid(), started_at(os.getpid()) or ""
    )
    if not _is_taken(json.dumps(asdict(snapshot)), keep_waiting):
        holder.drop()
        return
    while keep_waiting():
        time.sleep(min(_LOOK_SECONDS, max(deadline - time.monotonic(), 0)))
    holder.close()


def _is_taken(answer: str, keep_waiting: Callable[[], bool]) -> bool:
    """Answers and waits for the requester's confirmation. False if the requester is gone or the time is over."""
    try:
        print(answer, flush=True)
    except BrokenPipeError:
        return False
    while not _can_read(sys.stdin, _LOOK_SECONDS):
        # A child of the requester may hold a copy of the pipe, so the requester can end without an EOF.
        if not keep_waiting():
            return False
    return sys.stdin.readline() == _TAKEN


def _can_read(file: IO[str], seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


if __name__ == "__main__":
    main()
