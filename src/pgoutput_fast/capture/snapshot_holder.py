"""A process that holds a snapshot for others: `python -m pgoutput_fast.capture.snapshot_holder`.

It gets its task as a line of JSON, answers with one, and lives until its time is up or the process it is for has ended.
Those who want the same slot of the same application get the same snapshot.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pgoutput_fast.capture.snapshot_export import SnapshotError, export_snapshot

__all__ = ["HeldSnapshot", "hold_snapshot"]

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot that a process holds.

    Attributes:
        name: for `SET TRANSACTION SNAPSHOT`.
        consistent_lsn: it shows what committed before.
        slot: the slot that begins there.
        pid: the process.
    """

    name: str
    consistent_lsn: int
    slot: str
    pid: int

    def release(self) -> None:
        """Ends the process, and with it the snapshot."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def hold_snapshot(dsn: str, slot: str | None, seconds: float, for_pid: int | None) -> HeldSnapshot:
    """Starts a process that exports a snapshot and holds it.

    Args:
        dsn: of the database.
        slot: the slot to create; if a process holds the snapshot of that slot for `for_pid` already, that one counts.
        seconds: so long at most.
        for_pid: the process with which it ends, None for none.

    Raises:
        SnapshotError: if the slot exists, and nobody holds its snapshot.
        RuntimeError: if the process failed; the message says how.
    """
    if slot is None:
        return _start(dsn, slot, seconds, for_pid)
    with _registered(dsn, slot, for_pid) as file:
        known = file.read()
        if known:
            held = HeldSnapshot(**json.loads(known))
            if is_alive(held.pid):
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
    key = hashlib.sha256(f"{dsn}\0{slot}\0{for_pid}".encode()).hexdigest()[:32]
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
    """What the system says of a process: `stat` (one letter), `ppid` or `comm`."""
    try:
        # The name stands in parentheses, and may have some itself.
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        values = rest.split()
        return {"stat": values[0], "ppid": values[1], "comm": head.partition("(")[2]}[name]
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
    try:
        holder = export_snapshot(task["dsn"], task["slot"])
    except Exception as problem:
        said = str(problem).strip() or type(problem).__name__
        print(json.dumps({"error": said, "refused": isinstance(problem, SnapshotError)}), flush=True)
        return
    export = holder.export
    held = HeldSnapshot(export.name, export.consistent_lsn, export.slot, os.getpid())
    print(json.dumps(asdict(held)), flush=True)
    while time.monotonic() < deadline and (task["for_pid"] is None or is_alive(task["for_pid"])):
        time.sleep(min(_LOOK_SECONDS, max(deadline - time.monotonic(), 0)))
    holder.close()


if __name__ == "__main__":
    main()
