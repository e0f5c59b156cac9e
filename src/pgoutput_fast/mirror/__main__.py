"""`python -m pgoutput_fast.mirror`: runs a mirror as a process, until it is told to stop or up to a position."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from pgoutput_fast.arguments import UsageError, expect_given
from pgoutput_fast.capture.own_process import leave_out_pandas
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.capture.retries import RETRY_SECONDS
from pgoutput_fast.display import error_text, some_of
from pgoutput_fast.mirror.arguments import catalog_properties
from pgoutput_fast.mirror.backlog import BACKLOG_BYTES
from pgoutput_fast.mirror.errors import MirrorError
from pgoutput_fast.mirror.formats import FORMATS
from pgoutput_fast.mirror.points import MOST_POINTS
from pgoutput_fast.mirror.service import Mirror
from pgoutput_fast.mirror.status import TableStatus
from pgoutput_fast.postgres.session import DsnError, position_of
from pgoutput_fast.programs import Program
from pgoutput_fast.stopping import leave

_PROGRAM = "python -m pgoutput_fast.mirror"

_log = logging.getLogger("pgoutput_fast.mirror")


def main(arguments: Sequence[str] | None = None, *, prog: str = _PROGRAM, raises: bool = False) -> int:
    """Runs a mirror.

    Args:
        arguments: by default, those of this process.
        prog: the program's name in the help.
        raises: whether errors are raised. Otherwise they become a line, and an exit status.

    Returns:
        The exit status: 0 if it ended as it was told, 1 after an error or if a table lacks what `--until` asked for,
            2 for arguments that cannot be used.
    """
    given = _parser(prog).parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING if given.quiet else logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s: %(message)s",
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _run(given, stop)
    except Exception as problem:
        if raises:
            raise
        print(f"{type(problem).__name__}: {error_text(problem)}", file=sys.stderr)
        return 2 if isinstance(problem, UsageError) else 1
    return 0


def _run(given: argparse.Namespace, stop: threading.Event) -> None:
    if given.target == "":
        raise UsageError("--target is empty: name a directory or a URI")
    expect_given({f"--{name}": getattr(given, name) for name in ("slot", "publication", "target")})
    if given.another_source and not given.repair:
        raise UsageError("--another-source is for --repair")
    dsn = sys.stdin.readline().strip() if given.dsn == "-" else given.dsn
    with _mirror(given, dsn) as mirror:
        if given.repair:
            mirror.repair(stop=stop, another_source=given.another_source)
        for table in given.reload:
            mirror.reload(table, stop=stop)
        for table in given.forget:
            mirror.forget(table)
        mirror.run(until_lsn=None if given.until is None else _position(given.until, dsn), stop=stop)
        if (left := mirror.unfinished) is not None:
            before = (
                "" if given.until is None else f" before all tables had what committed up to {given.until}"
            )
            raise MirrorError(f"it was stopped{before}. {left[0].upper()}{left[1:]}")
        states = mirror.status()
        for each in states if not given.quiet else ():
            _log.info("%s", each)
        if given.until is not None:
            _expect_complete(states, given.until, stopped=stop.is_set())


def _expect_complete(states: Sequence[TableStatus], until: str, *, stopped: bool) -> None:
    """Makes sure that a run with --until ends with status 0 only if all tables have what it should bring.

    Raises:
        MirrorError: if it was stopped before, or if a table or its history is stopped.
    """
    if stopped:
        raise MirrorError(
            f"it was stopped before all tables had what committed up to {until}. Run it again: it goes on where it was"
        )
    lacking = [
        each.table for each in states if each.state not in ("follow", "unpublished") or each.history_error
    ]
    if lacking:
        raise MirrorError(
            f"{some_of(lacking)} did not take what committed up to {until}: pgoutput-fast status says why"
        )


def _mirror(given: argparse.Namespace, dsn: str) -> Mirror:
    try:
        return Mirror(
            dsn,
            given.slot,
            given.publication,
            given.target,
            format=given.format,
            segments=given.segments,
            seconds=given.seconds,
            merge_seconds=given.merge_seconds,
            adopt=given.adopt,
            retention=Retention(consumed=True) if given.remove_segments else None,
            keep_points=given.keep_points,
            in_step=given.in_step,
            threads=given.threads,
            retry_seconds=given.retry_seconds,
            backlog_bytes=given.backlog_bytes or None,
            iceberg_catalog=catalog_properties(given.iceberg_catalog),
            metrics_file=given.metrics_file,
            metrics_address=given.metrics_address,
        )
    except ValueError as problem:
        raise UsageError(str(problem)) from problem


def _parser(prog: str = _PROGRAM) -> argparse.ArgumentParser:
    parser = Program(
        prog,
        "Mirrors the published tables of a database: loads them once, then follows their changes, until "
        "SIGTERM or SIGINT. If it is killed, run it again: it goes on where it was.",
        "--dsn dbname=shop --slot to_lake --publication shop --target lake/",
    )
    _add_source(parser)
    _add_target(parser)
    _add_first(parser)
    _add_end(parser)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("source")
    group.add_argument(
        "--dsn",
        default=os.environ.get("PGOUTPUT_FAST_DSN", ""),
        help="libpq's connection string or URI; - reads it from the first line of the standard input, so that no other "
        "user sees a password (default: $PGOUTPUT_FAST_DSN, or else libpq's own variables)",
    )
    group.add_argument("--slot", help="the replication slot; the mirror creates it")
    group.add_argument(
        "--publication",
        action="append",
        default=[],
        help="a publication whose tables you want; give the option several times for several publications",
    )
    group.add_argument(
        "--adopt", action="store_true", help="take over a slot that exists; nobody else may read it"
    )
    group.add_argument(
        "--threads",
        type=int,
        default=1,
        help="sessions that read a table during a load (default: %(default)s)",
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument("--target", help="a directory, or a URI such as s3://bucket/lake")
    group.add_argument(
        "--format", choices=FORMATS, default="delta", help="of the current tables (default: %(default)s)"
    )
    group.add_argument(
        "--iceberg-catalog",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of the pyiceberg catalog that has the tables; give the option several times for several "
        "properties (default: a catalog in the target)",
    )
    group.add_argument("--segments", help="the directory of the segments (default: _segments in the target)")
    group.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="how old a change may become before it is in its history (default: %(default)s)",
    )
    group.add_argument(
        "--merge-seconds",
        type=float,
        metavar="SECONDS",
        help="how old a change may become before it is in its current table (default: as --seconds)",
    )
    group.add_argument(
        "--keep-points",
        type=int,
        default=MOST_POINTS,
        metavar="N",
        help="how many points in time can be read (default: %(default)s)",
    )
    group.add_argument(
        "--in-step",
        action="store_true",
        help="change the current tables only together; a table that is stopped stops the mirror",
    )
    group.add_argument(
        "--remove-segments", action="store_true", help="remove the segments that all tables have"
    )
    group.add_argument(
        "--backlog-bytes",
        type=int,
        default=BACKLOG_BYTES,
        metavar="N",
        help="pause the capture while about so many bytes of segments wait for the mirror; 0 for no limit (default: "
        "%(default)s)",
    )


def _add_first(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is done first")
    group.add_argument(
        "--repair",
        action="store_true",
        help="if the slot is lost, make another one, compare the tables with the server, and repair what differs",
    )
    group.add_argument(
        "--another-source",
        action="store_true",
        help="for --repair: another server, or a database with another name, has taken the place of the one whose rows "
        "the tables have; give the tables its rows",
    )
    group.add_argument(
        "--reload",
        action="append",
        default=[],
        metavar="TABLE",
        help="load this table again, as it is on the server now; you may give the option several times",
    )
    group.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="TABLE",
        help="forget a table that is not published any more; its files stay; you may give the option several times",
    )


def _add_end(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("end and reports")
    group.add_argument(
        "--until", metavar="LSN|now", help="stop when everything that committed up to here is in all tables"
    )
    group.add_argument(
        "--retry-seconds",
        type=float,
        default=RETRY_SECONDS,
        help="how long to wait for a server or store that is away (default: %(default)s)",
    )
    group.add_argument(
        "--metrics-file", metavar="FILE", help="write the metrics to this file, for Prometheus' node exporter"
    )
    group.add_argument(
        "--metrics-address", metavar="HOST:PORT", help="let Prometheus scrape the metrics at this address"
    )
    group.add_argument("--quiet", action="store_true", help="log only warnings and errors")


def _position(text: str, dsn: str) -> int | str:
    """The position, checked before the mirror begins."""
    try:
        return text if text == "now" else position_of(text, dsn)
    except DsnError:
        raise  # the cause is not --until
    except ValueError as problem:
        raise UsageError(f"--until: {problem}") from None


if __name__ == "__main__":
    leave_out_pandas()
    leave(main())
