"""A capture in its own process. The process ends when its parent ends, however that happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import psycopg2

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.capture.errors import AwayError
from pgoutput_fast.capture.own_process import own_allocator
from pgoutput_fast.capture.recorder import Limits
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.capture.service import Capture, CaptureError
from pgoutput_fast.postgres.passwords import Dsn, PasswordError
from pgoutput_fast.postgres.slots import find_slot
from pgoutput_fast.protocol.lsn import Lsn, parse_lsn
from pgoutput_fast.storage.paths import redacted_uri

__all__ = ["ASK_PASSWORD", "CaptureProcess", "Settings"]

# How long a capture may take to write its messages when it is stopped.
_STOP_SECONDS = 30.0
_LISTENER_SECONDS = 1.0
# How long the slot may seem ahead of the directory: the server may not have noticed that its client has died.
_AHEAD_SECONDS = 5.0
ASK_PASSWORD = '{"ask": "password"}'
"""The line by which the process asks for the password of a `Dsn`. The answer has `password` or `problem`."""


@dataclass(frozen=True, repr=False)
class Settings:
    """The settings of a capture, in a form that another process can receive.

    Attributes:
        dsn, slot, publications, directory: as in `Capture`.
        limits: the arguments of `Limits`, by name.
        more: other keyword arguments of `Capture`; `retention` has the arguments of `Retention`, by name.
        until_lsn, retry_seconds: as in `Capture.run`.

    >>> Settings("password=secret", "s", ("p",), "d", until_lsn=7)
    Settings(dsn=..., slot='s', publications=('p',), directory='d', limits={}, more={}, until_lsn=7, retry_seconds=None)
    >>> Settings.from_dict(Settings("", "s", ("p",), "d", {"rows": 7}).to_dict()).limits
    {'rows': 7}
    """

    dsn: str
    slot: str
    publications: tuple[str, ...]
    directory: str
    limits: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    until_lsn: Lsn | None = None
    retry_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.until_lsn is not None:
            object.__setattr__(self, "until_lsn", parse_lsn(self.until_lsn))

    def __repr__(self) -> str:
        # The dsn and the directory's URI may contain a password, which must not be printed.
        given = {
            each.name: redacted_uri(self.directory) if each.name == "directory" else getattr(self, each.name)
            for each in fields(self)
            if each.name != "dsn"
        }
        return f"Settings(dsn=..., {', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The inverse of `to_dict`."""
        return cls(**{**values, "publications": tuple(values["publications"])})

    def capture(self) -> Capture:
        """Returns a capture with these settings.

        Raises:
            ValueError: for an unknown setting or a wrong value.
        """
        try:
            limits = Limits(**self.limits)  # type: ignore[arg-type]
            more = dict(self.more)
            if more.get("retention") is not None:
                more["retention"] = Retention(**more["retention"])
            return Capture(self.dsn, self.slot, self.publications, self.directory, limits=limits, **more)
        except TypeError as problem:
            raise ValueError(f"the settings of the capture are wrong: {problem}") from None

    def run_arguments(self) -> dict[str, Any]:
        """Returns the arguments of `Capture.run`."""
        given = {"until_lsn": self.until_lsn, "retry_seconds": self.retry_seconds}
        return {name: value for name, value in given.items() if value is not None}


class CaptureProcess:
    """Runs a capture in a separate process, which waits while another process captures.

    Args:
        settings: what to capture, and where.

    Raises:
        ValueError: for settings that no capture has.
    """

    def __init__(self, settings: Settings) -> None:
        settings.capture()
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._began = 0.0
        self._is_paused = False
        # Another thread may pause the capture during its start. The settings must be the first line.
        self._telling = threading.Lock()
        self._listener: threading.Thread | None = None
        self._output = ""

    def start(self) -> None:
        """Starts the process unless it runs."""
        if self._process is not None:
            return
        self._began = time.monotonic()
        with self._telling:
            # The dsn may contain a password, so it is passed on standard input: other users can see arguments.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pgoutput_fast.capture.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**own_allocator(), **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # A signal to all processes of a terminal reaches only the parent, which passes it on.
                start_new_session=True,
            )
            self._tell({**self._settings.to_dict(), "asks": isinstance(self._settings.dsn, Dsn)})
            if self._is_paused:
                self._tell({"pause": True})
        self._output = ""
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """Answers the questions of the process for a password, and keeps its last line."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.strip() != ASK_PASSWORD:
                    self._output = line
                    continue
                try:
                    assert isinstance(self._settings.dsn, Dsn)
                    answer = {"password": self._settings.dsn.ask()}
                except PasswordError as problem:
                    answer = {"problem": str(problem)}
                with self._telling:
                    if self._process is process:  # the function may have taken long
                        self._tell(answer)

    def pause(self, on: bool = True) -> None:
        """Pauses or resumes reading from the server. The connection stays open."""
        with self._telling:
            self._is_paused = on
            self._tell({"pause": on})

    def _tell(self, values: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()

    def check(self) -> bool:
        """Whether the process still runs or waits. False if it has completed.

        Raises:
            CaptureError: if the capture failed; `AwayError` if the server or the store was unavailable, or the process
                was killed.
        """
        if self._process is None or self._process.poll() is None:
            return self._process is not None
        if self._process.returncode == 0:
            return False
        assert self._listener is not None
        self._listener.join(_STOP_SECONDS)
        # It was killed by somebody or by the OOM killer. The capture itself did not fail.
        is_away = is_killed = self._process.returncode == -signal.SIGKILL
        try:
            answer = parsed_json(self._output)
            why, is_away = answer["error"], answer["away"]
        except (ValueError, KeyError, TypeError):
            why = f"its process ended with status {self._process.returncode}"
            if is_killed:
                why = "its process was killed (SIGKILL)"
        where = f"the capture of slot {self._settings.slot} into {redacted_uri(self._settings.directory)}"
        problem = (AwayError if is_away else CaptureError)(f"{where} ended with an error: {why}")
        if isinstance(problem, AwayError) and not is_killed:
            # A capture that was connected has retried for the maximum time. Any other has tried since its start.
            most = self._settings.retry_seconds
            ran = time.monotonic() - self._began
            problem.tried_seconds = ran if most is None else min(ran, most)
        raise problem

    def wait(self) -> None:
        """Waits until everything committed up to `until_lsn` is durable in the directory.

        It does not matter which process captures it.

        Raises:
            CaptureError: if the capture failed, or the slot is captured into another directory.
            psycopg2.Error: if the server cannot be queried.
        """
        assert self._settings.until_lsn is not None
        until = parse_lsn(self._settings.until_lsn)
        directory = SegmentDirectory(self._settings.directory)
        ahead_since: float | None = None
        while self.check():
            slot = None
            with contextlib.suppress(psycopg2.OperationalError):
                slot = find_slot(self._settings.dsn, self._settings.slot)
            if slot is not None and (slot.confirmed_flush_lsn or 0) >= until:
                # A capture into this directory makes changes durable before it confirms them to the server.
                if directory.durable_lsn() >= until:
                    return
                now = time.monotonic()
                ahead_since = now if ahead_since is None or slot.active_pid is None else ahead_since
                if now - ahead_since > _AHEAD_SECONDS:
                    raise CaptureError(
                        f"another process captures slot {self._settings.slot} into another directory: the slot is "
                        f"confirmed up to now, but {redacted_uri(self._settings.directory)} lacks the changes. Read "
                        "the other directory, or use a slot of its own for this directory"
                    )
            time.sleep(0.2)

    def stop(self) -> None:
        """Ends the process. Received messages become durable, unless this takes too long."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with self._telling, contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # It may wait for the user's function for the password, whose answer nobody needs any more.
        assert self._listener is not None
        self._listener.join(_LISTENER_SECONDS)
        self._process = None
