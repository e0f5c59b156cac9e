"""Runs the command `pgoutput-fast`: every error becomes one line and an exit status."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.stopping import leave, stop_by_exception, stop_no_more
from pgoutput_fast.cli.passwords import passwords_in, without_passwords
from pgoutput_fast.cli.problems import DONE, INTERRUPTED, PROBLEM, WRONG_USAGE, format_problem

__all__ = ["main"]

_NAME = "pgoutput-fast"
_DEBUG = "--debug"
# Long-running commands, which use the libraries whose threads `leave` is about.
_SERVICES = ("capture", "mirror")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the arguments after the command's name; by default, those of this process. `--debug` may be anywhere
            before `--`: errors then include a traceback.

    Returns:
        0 for success, 1 for a reported problem, 2 for wrong usage, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = _DEBUG in given[:end]
    given = [each for each in given[:end] if each != _DEBUG] + given[end:]
    if arguments is not None:
        return _status(given, debug=debug, own_process=False)
    _open_streams()
    status = _status(given, debug=debug, own_process=True)
    return leave(status) if given[:1] and given[0] in _SERVICES else status


def _status(given: list[str], *, debug: bool, own_process: bool) -> int:
    try:
        return _run(given, own_process=own_process)
    except KeyboardInterrupt:
        return _tell("stopped", INTERRUPTED)
    except BrokenPipeError:
        return _unread()
    except Exception as problem:
        hidden = passwords_in(given, os.environ)
        if debug:
            sys.stderr.write(without_passwords(traceback.format_exc(), hidden))
        status, text = _meaning(problem)
        return _tell(without_passwords(text, hidden), status)
    finally:
        if own_process:
            stop_no_more()


def _open_streams() -> None:
    """Opens closed standard streams, as a service may leave them, on the null device.

    Characters that the encoding of the output lacks are escaped there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(given: list[str], *, own_process: bool) -> int:
    from pgoutput_fast.cli.app import app

    if own_process:
        stop_by_exception()
    output = sys.stdout
    call: Callable[..., Any] = app
    try:
        status = call(args=given, prog_name=_NAME, standalone_mode=False, obj=own_process)
        sys.stdout.flush()
    except SystemExit as ended:
        if sys.stdout is not output:
            # typer has met a closed pipe, and would end with an error.
            sys.stdout = output
            raise BrokenPipeError from None
        status = ended.code
        if isinstance(status, str):
            return _tell(status, PROBLEM)
    if status == INTERRUPTED:
        return _tell("stopped", INTERRUPTED)
    return status if isinstance(status, int) else DONE


def _meaning(problem: Exception) -> tuple[int, str]:
    """(exit status, text) of an error. Errors of typer have their own text, and know their command."""
    if isinstance(problem, UsageError):
        return WRONG_USAGE, format_problem(problem)
    of_typer = getattr(problem, "format_message", None)
    if of_typer is None:
        # typer raises this if the input ends without an answer.
        ended = type(problem).__name__ == "Abort"
        return (INTERRUPTED, "stopped") if ended else (PROBLEM, format_problem(problem))
    text = " ".join(of_typer().split())
    context = getattr(problem, "ctx", None)
    path = context.command_path if context is not None else _NAME
    sentence = text if text.endswith("?") else f"{text.rstrip('.')};"
    return WRONG_USAGE, f"{sentence} {path} --help explains it"


def _unread() -> int:
    # The reader has gone. Python would try to write the rest when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _tell(text: str, status: int) -> int:
    line = f"{_NAME}: {text}"
    if sys.stderr.isatty():
        # A terminal would break words. rich may be the missing package.
        columns = shutil.get_terminal_size().columns
        line = textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)
    return status
