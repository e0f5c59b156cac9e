"""Runs the command `pgoutput-fast`: every error becomes one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pgoutput_fast.cli.problems import DONE, INTERRUPTED, PROBLEM, WRONG_USAGE, UsageError, said

__all__ = ["main"]

_NAME = "pgoutput-fast"
_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: what follows the command's name; by default, those of this process. `--debug` may stand anywhere
            before `--`: errors then have their trace.

    Returns:
        0 if it is done, 1 for a problem that it names, 2 for wrong usage, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = _DEBUG in given[:end]
    given = [each for each in given[:end] if each != _DEBUG] + given[end:]
    try:
        from pgoutput_fast.cli.app import app
    except ModuleNotFoundError as problem:
        if debug or problem.name not in ("typer", "rich"):
            raise
        return _tell(f"{problem.name} is missing: pip install 'pgoutput_fast[cli]'", PROBLEM)
    try:
        app(args=given, prog_name=_NAME)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else DONE if ended.code is None else PROBLEM
    except KeyboardInterrupt:
        return _tell("stopped", INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads any more. Python would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as problem:
        if debug:
            raise
        return _tell(said(problem), WRONG_USAGE if isinstance(problem, UsageError) else PROBLEM)
    return DONE


def _tell(text: str, status: int) -> int:
    print(f"{_NAME}: {text}", file=sys.stderr)
    return status
