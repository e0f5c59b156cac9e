"""`pgoutput-fast segments`: lists segments, shows their messages, verifies and joins them."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.base.display import counted
from pgoutput_fast.cli.arguments import Json, Tables
from pgoutput_fast.cli.filters import Filters
from pgoutput_fast.cli.inputs import InputKind, opened
from pgoutput_fast.cli.inspect import Counts, Follow, Kinds, Limit, Lsns, Xids, expect_end, inspect_inputs
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.cli.problems import DONE, PROBLEM
from pgoutput_fast.cli.screen import line, lsn_text, objects, table
from pgoutput_fast.cli.verify_segments import verified
from pgoutput_fast.segments.compaction import compact as join
from pgoutput_fast.segments.listing import list_segments
from pgoutput_fast.segments.names import name_of
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.storage.paths import FoundFile, find_files, redacted_uri

__all__ = ["segments"]

# A terminal of at least this width shows full names.
_WIDE = 130

segments = typer.Typer(
    name="segments",
    help="List segments, show their messages, verify and join them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Place = Annotated[
    str, typer.Argument(metavar="SEGMENTS", show_default=False, help="a directory, a URI, or one segment")
]
Directory = Annotated[
    str, typer.Argument(metavar="DIRECTORY", show_default=False, help="a directory or URI of segments")
]


@segments.command("ls")
def ls(path: Place = "", json: Json = False) -> None:
    """List the segments in stream order.

    Example: pgoutput-fast segments ls /data/segments
    """
    expect_given({"SEGMENTS": path})
    found = list_segments(path)
    if not found:
        raise InputError(f"{redacted_uri(path)} has no segments")
    files = {file.path: file for file in find_files(path)}
    rows = [_listed(each, files.get(str(each.path))) for each in found]
    if json:
        objects(rows)
        return
    pairs = list(zip(found, rows, strict=True))
    is_narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < _WIDE
    # The ordinals of a name have 20 digits. Without leading zeros, a line fits into a terminal.
    names = [f"{each.first_seq}-{each.last_seq}" if is_narrow else row["name"] for each, row in pairs]
    table(
        ["ordinals" if is_narrow else "name", "messages", "from LSN", "to LSN", "size", "written"],
        [
            (
                name,
                f"{row['messages']:,}",
                row["start_lsn"],
                row["end_lsn"],
                decimal(row["bytes"]),
                row["written"],
            )
            for name, row in zip(names, rows, strict=True)
        ],
        right=["messages", "size"],
    )


def _listed(segment: Segment, file: FoundFile | None) -> dict[str, Any]:
    """The values of a segment in a list."""
    return {
        "name": name_of(segment.first_seq, segment.last_seq),
        "messages": segment.last_seq - segment.first_seq + 1,
        "start_lsn": lsn_text(segment.start_lsn),
        "end_lsn": lsn_text(segment.end_lsn),
        "bytes": 0 if file is None else file.nbytes,
        "written": None if file is None or not file.modified else _time(file.modified),
    }


def _time(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


@segments.command("cat")
def cat(
    path: Place = "",
    table: Tables = None,
    xid: Xids = None,
    lsn: Lsns = None,
    kind: Kinds = None,
    limit: Limit = None,
    json: Json = False,
    summary: Counts = False,
    follow: Follow = False,
) -> None:
    """Show the messages of segments, as inspect does.

    Example: pgoutput-fast segments cat /data/segments --table public.orders --limit 10
    """
    expect_given({"SEGMENTS": path})
    expect_end(summary=summary, follow=follow)
    filters = Filters.of(table, xid, lsn, kind)
    with opened([path], InputKind.SEGMENTS, follow=follow) as found:
        inspect_inputs(found, filters, limit, json=json, summary=summary, follow=follow)


@segments.command("verify")
def verify(path: Place = "", json: Json = False) -> None:
    """Read segments and check them: checksums, order, gaps, each message. The exit status is 1 if one is wrong.

    Example: pgoutput-fast segments verify /data/segments
    """
    expect_given({"SEGMENTS": path})
    count = rows = wrong = 0
    for each in verified(path):
        count, rows, wrong = count + 1, rows + each.rows, wrong + bool(each.problems)
        if json:
            objects([asdict(each)])
        else:
            for problem in each.problems:
                line(f"{each.name}: {problem}", "bold red")
    if not json:
        line(
            f"{counted(count, 'segment')}, {counted(rows, 'row')}: {f'{wrong:,} wrong' if wrong else 'all in order'}",
            "red" if wrong else "green",
        )
    raise typer.Exit(PROBLEM if wrong else DONE)


@segments.command("compact")
def compact(
    directory: Directory = "",
    most_bytes: Annotated[
        int,
        typer.Option(
            "--most-bytes", min=1, help="the maximum size of the files that are joined into one, in bytes"
        ),
    ] = 128 << 20,
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="how many of the newest segments stay as they are")
    ] = 2,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            min=0,
            help="seconds that joined files stay, for queries that run; 0 only if nobody reads",
        ),
    ] = 600.0,
    json: Json = False,
) -> None:
    """Join small segments into large ones. Captures and readers go on meanwhile.

    Example: pgoutput-fast segments compact /data/segments --keep 2 --grace 600
    """
    expect_given({"DIRECTORY": directory})
    if os.path.isfile(directory):
        raise UsageError(f"compact joins the segments of a directory, and {directory} is a file")
    # Otherwise an empty directory would count as one with nothing to join.
    if not find_files(directory):
        raise InputError(f"{redacted_uri(directory)} has no segments")
    done = join(directory, most_bytes=most_bytes, keep=keep, grace=grace)
    if json:
        objects([asdict(done)])
        return
    rows = counted(done.rows, "row")
    line(f"{counted(done.before, 'segment')} became {done.after:,}: joined {done.joined:,}, with {rows}")
    if done.joined:
        line(f"{decimal(done.bytes_before)} became {decimal(done.bytes_after)}")
    if done.removed or done.waiting:
        line(
            f"joined files: {done.removed:,} removed, {done.waiting:,} wait until their grace period has passed"
        )
