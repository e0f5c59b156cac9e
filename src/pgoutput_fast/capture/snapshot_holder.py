"""A process that holds a snapshot for others: `python -m pgoutput_fast.capture.snapshot_holder`.

It gets its task as a line of JSON, answers with one, is told that the answer was taken, and lives until its time is up
or the process it is for has ended. Before the answer was taken it ends with who asked, too, and leaves no slot behind.
Those who want the same slot of the same application get the same snapshot.
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

from pgoutput_fast.capture.snapshot_export import SnapshotError, export_snapshot

__all__ = ["HeldSnapshot", "hold_snapshot"]

_LOOK_SECONDS = 1.0
_TAKEN = "taken\n"


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot that a process holds.

    Attributes:
        name: for `SET TRANSACTION SNAPSHOT`.
        consistent_lsn: it shows what committed before.
        slot: the slot that begins there.
        pid: the process.
        started: when it began, as `started_at` has it: a process that has the pid later is another one.
    """

    name: str
    consistent_lsn: int
    slot: str
    pid: int
    started: str = ""

    @property
    def is_held(self) -> bool:
        """Whether the process is still there, and is that one."""
        return is_alive(self.pid) and self.started != "" and started_at(self.pid) == self.started

    def release(self) -> None:
        """Ends the process, and with it the snapshot."""
        if not self.is_held:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def hold_snapshot(dsn: str, slot: str | None, seconds: float, for_pid: int | None) -> HeldSnapshot:
    """Starts a process that exports a snapshot and holds it.

    Args:
        dsn: of the database.
        slot: the slot to create; if a process holds the snapshot of that slot for `for_pid` already, that one counts.
        seconds: so long at most, the waiting for open transactions included.
        for_pid: the process with which it ends, None for none.

    Raises:
        SnapshotError: if the slot exists, and nobody holds its snapshot; if the time was over before there was one.
        RuntimeError: if the process failed; the message says how.
    """
    if slot is None:
        return _start(dsn, slot, seconds, for_pid)
    with _registered(dsn, slot, for_pid) as file:
        known = file.read()
        if known:
            held = HeldSnapshot(**json.loads(known))
            if held.is_held:
                return held
        held = _start(dsn, slot, seconds, for_pid)
        file.seek(0)
        file.truncate()
        file.write(json.dumps(asdict(held)))
        return held


def _registered(dsn: str, slot: str, for_pid: int | None) -> IO[str]:
    """The file that says who holds a slot's snapshot; locked until it is closed."""
    directory = Path(tempfile.gettempdir()) / f"pgoutput_fast-{getpass.getuser()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise RuntimeError(f"{directory} belongs to somebody else")
    of = None if for_pid is None else started_at(for_pid)
    key = hashlib.sha256(f"{dsn}\0{slot}\0{for_pid}\0{of}".encode()).hexdigest()[:32]
    file = open(directory / f"{key}.json", "a+")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0)
    return file


def _start(dsn: str, slot: str | None, seconds: float, for_pid: int | None) -> HeldSnapshot:
    process = subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast.capture.snapshot_holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # what interrupts those who asked does not end it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    task = {"dsn": dsn, "slot": slot, "seconds": seconds, "for_pid": for_pid}
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        said = process.stdout.readline()
        with contextlib.suppress(BrokenPipeError):  # it has failed, and says why
            # Not through a buffer, which would be written again when it is closed.
            os.write(process.stdin.fileno(), _TAKEN.encode())
    # What holds the snapshot is its child.
    code = process.wait()
    if not said:
        raise RuntimeError(f"the process that was to hold a snapshot ended with code {code}")
    answer = json.loads(said)
    if "error" in answer:
        raise (SnapshotError if answer["refused"] else RuntimeError)(answer["error"])
    return HeldSnapshot(**answer)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _field(pid, "stat") != "Z"


def started_at(pid: int) -> str | None:
    """When a process began, as the system counts; None if there is none. With its pid this names it for good."""
    started = _field(pid, "lstart")
    try:
        # Linux counts from when it was started itself.
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}" if started else None
    except OSError:
        return started


def java_above() -> int | None:
    """The Java virtual machine that this process works for, None if there is none."""
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
    """What the system says of a process: `stat` (one letter), `ppid`, `lstart` or `comm`."""
    try:
        # The name stands in parentheses, and may have some itself.
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
    said = found.stdout.strip()
    return (said[:1] if name == "stat" else said) or None


def main() -> None:
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    if os.fork():
        # So that who started this one has no child left.
        os._exit(0)
    deadline = time.monotonic() + task["seconds"]
    for_pid = task["for_pid"]
    of = None if for_pid is None else started_at(for_pid)

    def wanted() -> bool:
        is_wanted = for_pid is None or (is_alive(for_pid) and started_at(for_pid) == of)
        return time.monotonic() < deadline and is_wanted

    try:
        # Who asked says nothing before there is an answer: what can be read is that it is gone.
        holder = export_snapshot(
            task["dsn"], task["slot"], wanted=lambda: wanted() and not _can_read(sys.stdin, 0)
        )
    except Exception as problem:
        said = str(problem).strip() or type(problem).__name__
        print(json.dumps({"error": said, "refused": isinstance(problem, SnapshotError)}), flush=True)
        return
    export = holder.export
    held = HeldSnapshot(
        export.name, export.consistent_lsn, export.slot, os.getpid(), started_at(os.getpid()) or ""
    )
    if not _is_taken(json.dumps(asdict(held)), wanted):
        holder.drop()
        return
    while wanted():
        time.sleep(min(_LOOK_SECONDS, max(deadline - time.monotonic(), 0)))
    holder.close()


def _is_taken(answer: str, wanted: Callable[[], bool]) -> bool:
    """Answers, and waits until who asked has read it. False if it is gone, or the time is over."""
    try:
        print(answer, flush=True)
    except BrokenPipeError:
        return False
    while not _can_read(sys.stdin, _LOOK_SECONDS):
        # A copy of the pipe may be open in a child of who asked: it can be gone without an end of the pipe.
        if not wanted():
            return False
    return sys.stdin.readline() == _TAKEN


def _can_read(file: IO[str], seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


if __name__ == "__main__":
    main()
