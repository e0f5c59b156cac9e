"""`python -m pgoutput_fast.capture`: runs a capture as a process, until it is told to stop or up to a position."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from pgoutput_fast.arguments import UsageError, expect_given
from pgoutput_fast.capture.errors import CaptureError
from pgoutput_fast.capture.own_process import interrupt_nobody, leave_out_pandas
from pgoutput_fast.capture.process import Settings
from pgoutput_fast.capture.retries import is_outage
from pgoutput_fast.capture.service import CaptureBusyError
from pgoutput_fast.display import error_text
from pgoutput_fast.documents import parsed_json
from pgoutput_fast.postgres.session import DsnError, position_of
from pgoutput_fast.programs import Program
from pgoutput_fast.protocol.lsn import format_lsn, parse_lsn
from pgoutput_fast.stopping import leave
from pgoutput_fast.storage.stores import open_store

_PROGRAM = "python -m pgoutput_fast.capture"
_DAY_SECONDS = 86_400.0
# How long a capture may take to end; and how often a waiting capture looks whether the other one has ended.
_GRACE_SECONDS, _WAIT_SECONDS = 25.0, 1.0


def main(arguments: Sequence[str] | None = None, *, prog: str = _PROGRAM, raises: bool = False) -> int:
    """Runs a capture.

    Args:
        arguments: by default, those of this process.
        prog: the program's name in the help.
        raises: whether errors are raised. Otherwise they become a line, and an exit status.

    Returns:
        The exit status: 0 if it ended as it was told, 1 after an error or if it lacks what `--until` asked for, 2 for
            arguments that cannot be used.
    """
    given = _parser(prog).parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING if given.supervised or given.quiet else logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s: %(message)s",
    )
    stop, pause, settings = threading.Event(), threading.Event(), None
    for number in (signal.SIGTERM, signal.SIGINT):
        # A system may send it to all processes of a service. The parent says when this one ends.
        signal.signal(number, signal.SIG_IGN if given.supervised else lambda *_: stop.set())
    try:
        if given.supervised:
            settings = Settings.from_dict(parsed_json(sys.stdin.readline()))
            threading.Thread(target=_follow_parent, args=(stop, pause), daemon=True).start()
        else:
            settings = _settings(given)
        _run(settings, stop, pause, wait=given.supervised or given.wait)
    except Exception as problem:
        if stop.is_set() and given.supervised:
            return 0  # nobody reads the error
        if raises:
            raise
        said = error_text(problem)
        if given.supervised:
            print(json.dumps({"error": said, "away": _is_away(problem, settings)}), flush=True)
        else:
            print(f"{type(problem).__name__}: {said}", file=sys.stderr)
        return 2 if isinstance(problem, UsageError) else 1
    return 0


def _is_away(problem: Exception, settings: Settings | None) -> bool:
    return settings is not None and is_outage(problem, local=open_store(settings.directory).local)


def _run(settings: Settings, stop: threading.Event, pause: threading.Event, *, wait: bool) -> None:
    try:
        capture = settings.capture()
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    while True:
        try:
            capture.run(stop=stop, pause=pause, **settings.run_arguments())
            break
        except CaptureBusyError:
            if not wait or stop.wait(_WAIT_SECONDS):
                raise
    if settings.until_lsn is not None and stop.is_set():
        until = format_lsn(parse_lsn(settings.until_lsn))
        raise CaptureError(
            f"it was stopped before everything that committed up to {until} was durable. "
            "Run it again: it continues after its newest segment"
        )


def _follow_parent(stop: threading.Event, pause: threading.Event) -> None:
    """Pauses as the parent says, and ends this process when the parent closes its end of the pipe, or was killed."""
    for line in sys.stdin:
        if parsed_json(line)["pause"]:
            pause.set()
        else:
            pause.clear()
    stop.set()
    threading.Event().wait(_GRACE_SECONDS)
    os._exit(3)


def _parser(prog: str = _PROGRAM) -> argparse.ArgumentParser:
    parser = Program(
        prog,
        "Reads a replication slot and writes its changes as segments, until SIGTERM or SIGINT. "
        "It confirms to the server only what is durable. If it is killed, run it again: it continues after its "
        "newest segment.",
        "--dsn dbname=shop --slot to_lake --publication shop --path segments/",
    )
    _add_slot_options(parser)
    _add_segment_options(parser)
    _add_retention_options(parser)
    _add_end_options(parser)
    _add_report_options(parser)
    # The parent sends the settings as a line of JSON on the standard input, and later lines to pause and to go on. The
    # process ends when that input ends. It reports an error as a line of JSON, too.
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    return parser


def _add_slot_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("slot")
    group.add_argument(
        "--dsn",
        default=os.environ.get("PGOUTPUT_FAST_DSN", ""),
        help="libpq's connection string or URI (default: $PGOUTPUT_FAST_DSN, or else libpq's own variables)",
    )
    group.add_argument("--slot", help="the replication slot; the capture creates it if there is none")
    group.add_argument(
        "--publication",
        action="append",
        default=[],
        help="a publication whose changes you want; give the option several times for several publications",
    )
    group.add_argument(
        "--through",
        choices=("walsender", "sql"),
        default="walsender",
        help="how to read the slot; sql needs no replication connection (default: %(default)s)",
    )
    group.add_argument(
        "--two-phase",
        action="store_true",
        help="a slot that the capture creates decodes prepared transactions when they are prepared",
    )
    group.add_argument(
        "--adopt",
        action="store_true",
        help="begin with a slot from which somebody else has read; nobody else may read it any more",
    )
    group.add_argument(
        "--plugin-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an option of the output plugin, such as binary=true",
    )


def _add_segment_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("segments")
    group.add_argument("--path", help="the directory of the segments, or a URI such as s3://bucket/segments")
    group.add_argument("--rows", type=int, help="close a segment after this many rows")
    group.add_argument("--bytes", type=int, help="close a segment after this many bytes of payloads")
    group.add_argument("--seconds", type=float, help="close a segment after this many seconds")
    group.add_argument(
        "--file-mode",
        metavar="OCTAL",
        help="the most permissions of files, such as 640 (default: the umask decides)",
    )


def _add_retention_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("retention")
    group.add_argument("--keep-days", type=float, metavar="DAYS", help="remove segments that are older")
    group.add_argument(
        "--keep-unread", action="store_true", help="remove only segments that no consumer needs any more"
    )


def _add_end_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("end and interruptions")
    group.add_argument(
        "--until",
        metavar="LSN|now",
        help="stop when everything that committed up to this position is durable",
    )
    group.add_argument(
        "--retry-seconds", type=float, help="how long to wait for a server or store that is away"
    )
    group.add_argument(
        "--receive-timeout",
        type=float,
        metavar="SECONDS",
        help="connect again if the server answers nothing for this time (default: 60; 0 for never)",
    )
    group.add_argument(
        "--wait",
        action="store_true",
        help="if another process captures into the directory, wait until it has ended",
    )


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    group.add_argument("--log-seconds", type=float, metavar="SECONDS", help="how often to log the metrics")
    group.add_argument(
        "--metrics-file", metavar="FILE", help="write the metrics to this file, for Prometheus' node exporter"
    )
    group.add_argument(
        "--metrics-address", metavar="HOST:PORT", help="let Prometheus scrape the metrics at this address"
    )
    group.add_argument("--quiet", action="store_true", help="log only warnings and errors")


def _settings(given: argparse.Namespace) -> Settings:
    expect_given({f"--{name}": getattr(given, name) for name in ("slot", "publication", "path")})
    pairs = [text.partition("=") for text in given.plugin_option]
    if not all(name and sign for name, sign, _ in pairs):
        raise UsageError("--plugin-option must be NAME=VALUE")
    limits = {"rows": given.rows, "nbytes": given.bytes, "seconds": given.seconds}
    retention = {
        "older_than": None if given.keep_days is None else given.keep_days * _DAY_SECONDS,
        "consumed": given.keep_unread,
    }
    kept = given.keep_days is not None or given.keep_unread
    more: dict[str, Any] = {
        "retention": retention if kept else None,
        "two_phase": given.two_phase,
        "adopt": given.adopt,
        "through": given.through,
        "file_mode": None if given.file_mode is None else _mode(given.file_mode),
        "log_seconds": given.log_seconds,
        "metrics_file": given.metrics_file,
        "metrics_address": given.metrics_address,
        "overrides": {name: value for name, _, value in pairs},
    }
    if given.receive_timeout is not None:
        more["receive_timeout"] = given.receive_timeout or None
    return Settings(
        given.dsn,
        given.slot,
        tuple(given.publication),
        given.path,
        {name: value for name, value in limits.items() if value is not None},
        more,
        None if given.until is None else _position(given.until, given.dsn),
        given.retry_seconds,
    )


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise UsageError(f"--file-mode must be octal digits, such as 640; not {text!r}") from None


def _position(text: str, dsn: str) -> int:
    try:
        return position_of(text, dsn)
    except DsnError:
        raise  # the cause is not --until
    except ValueError as problem:
        raise UsageError(f"--until: {problem}") from None


if __name__ == "__main__":
    leave_out_pandas()
    interrupt_nobody()
    leave(main())
