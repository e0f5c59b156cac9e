"""The process of a `CaptureProcess`: `python -m pgoutput_fast.capture.child`.

The parent sends the settings as a line of JSON on standard input, and later lines to pause and resume. The process ends
when that input ends. It reports an error as a line of JSON on standard output. Before, it asks there for passwords.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading

from pgoutput_fast.base.display import error_text
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.base.stopping import leave
from pgoutput_fast.capture.own_process import interrupt_nobody, leave_out_pandas
from pgoutput_fast.capture.process import ASK_PASSWORD, Settings
from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.capture.service import run_in_turn
from pgoutput_fast.postgres.passwords import Dsn, PasswordError
from pgoutput_fast.storage.stores import open_store

# How long a capture may take to end after its parent.
_GRACE_SECONDS = 25.0


def main() -> int:
    """Captures according to the settings, in turn with other processes. Returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s: %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT):
        # A service manager may send it to all processes of a service. The parent decides when this one ends.
        signal.signal(number, signal.SIG_IGN)
    stop, pause, settings = threading.Event(), threading.Event(), None
    try:
        given, passwords = parsed_json(sys.stdin.readline()), _Passwords()
        if given.pop("asks"):
            given["dsn"] = Dsn(given["dsn"], passwords.ask)
        settings = Settings.from_dict(given)
        threading.Thread(target=_follow_parent, args=(stop, pause, passwords), daemon=True).start()
        run_in_turn(settings.capture(), stop, wait=True, pause=pause, **settings.run_arguments())
    except Exception as problem:
        if stop.is_set():
            return 0  # nobody reads the error
        answer = {"error": error_text(problem), "away": _is_away(problem, settings)}
        print(json.dumps(answer), flush=True)
        return 1
    return 0


def _is_away(problem: Exception, settings: Settings | None) -> bool:
    return settings is not None and is_outage(problem, local=open_store(settings.directory).local)


class _Passwords:
    """Asks the parent for passwords."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        # One question at a time, so that each gets its own answer.
        self._asking = threading.Lock()

    def ask(self) -> str:
        """Raises PasswordError: if the parent has none, or is gone."""
        with self._asking:
            print(ASK_PASSWORD, flush=True)
            answer = self._answers.get()
        if "problem" in answer:
            raise PasswordError(answer["problem"])
        return answer["password"]

    def take(self, answer: dict[str, str]) -> None:
        """Takes an answer of the parent."""
        self._answers.put(answer)


def _follow_parent(stop: threading.Event, pause: threading.Event, passwords: _Passwords) -> None:
    """Does what the parent says, and ends this process when the parent closes the pipe, or was killed."""
    for line in sys.stdin:
        told = parsed_json(line)
        if "pause" not in told:
            passwords.take(told)
        elif told["pause"]:
            pause.set()
        else:
            pause.clear()
    stop.set()
    passwords.take({"problem": "the process that knows the password has ended"})
    threading.Event().wait(_GRACE_SECONDS)
    os._exit(3)


if __name__ == "__main__":
    leave_out_pandas()
    interrupt_nobody()
    leave(main())
