"""Reads whole segments, and reports what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.cli.problems import format_problem
from pgoutput_fast.decoding.decoder import decode_tagged
from pgoutput_fast.protocol.kinds import SESSION_MARK
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.names import Named, cover, ordinals_of
from pgoutput_fast.segments.read import open_segment, read_segment
from pgoutput_fast.segments.segment import Segment, check_source
from pgoutput_fast.storage.paths import find_files, open_file, redacted_uri

__all__ = ["Verified", "verified"]

_SOMETHING_ELSE = "it is not a Parquet file, so it is not a segment"


@dataclass(frozen=True)
class Verified:
    """A segment that was read, or a gap between two.

    Attributes:
        name: the name of the file.
        rows: number of rows; 0 if it cannot be read.
        problems: its problems, empty if it is valid.
    """

    name: str
    rows: int
    problems: list[str]


def verified(path: str) -> Iterator[Verified]:
    """Reads all segments at a path, one by one.

    Reads each page and checks its checksum, reads each footer with its catalog, decodes each row, and compares the
    ordinals with the file's name, and with the previous segments.

    Args:
        path: a segment, a directory or a URI.

    Raises:
        InputError: if there are no segments.
        FileNotFoundError: if the path does not exist.
    """
    named: list[tuple[Named, str]] = []
    found = find_files(path)
    if not found:
        raise InputError(f"{redacted_uri(path)} has no segments")
    for file in found:
        name = file.path.partition("?")[0].rpartition("/")[2]
        try:
            named.append((Named(*ordinals_of(name), name), file.path))
        except ValueError as problem:
            what = format_problem(problem) if _is_parquet(file.path) else _SOMETHING_ELSE
            yield Verified(name, 0, [what])
    paths = dict(named)
    listed, covered = cover(paths)
    first: Segment | None = None
    between = {after: _between(before, after) for before, after in pairwise(listed)}
    for each in sorted(paths):
        problems = between.get(each, [])
        segment, rows = _read(paths[each], problems)
        if segment is not None:
            problems += _of_footer(each, segment)
            first = first or segment
            try:
                check_source(segment.path, segment.source, first.source)
            except ValueError as problem:
                problems.append(format_problem(problem))
            problems += [
                f"has the messages of {part.name}, but was not joined from it: they come from different captures"
                for part in covered.get(each, ())
                if not segment.replaces(part.first_seq, part.last_seq)
            ]
        yield Verified(each.name, 0 if rows is None else rows.num_rows, problems)


def _is_parquet(path: str) -> bool:
    """Whether a file begins like a Parquet file. It may be damaged."""
    file = open_file(path)
    with open(file, "rb") if isinstance(file, str) else file as opened:
        return bool(opened.read(4) == b"PAR1")


def _between(before: Named, after: Named) -> list[str]:
    if after.first_seq <= before.last_seq:
        return [f"begins at message {after.first_seq}, but {before.name} has it, too"]
    if after.first_seq > before.last_seq + 1:
        return [f"messages {before.last_seq + 1} to {after.first_seq - 1} are missing before it"]
    return []


def _read(path: str, problems: list[str]) -> tuple[Segment | None, pa.Table | None]:
    """Reads a segment, and adds its problems to the list."""
    try:
        segment = open_segment(path)
    except (ValueError, OSError, pa.ArrowException) as problem:
        problems.append(format_problem(problem))
        return None, None
    try:
        rows = read_segment(path)
        problems += _of_rows(segment, rows)
    except (ValueError, OSError, pa.ArrowException) as problem:
        problems.append(format_problem(problem))
        return segment, None
    return segment, rows


def _of_footer(named: Named, segment: Segment) -> list[str]:
    found = (segment.first_seq, segment.last_seq)
    if found != (named.first_seq, named.last_seq):
        return [
            f"its footer has messages {found[0]} to {found[1]}: somebody renamed it. Give it its old name"
        ]
    return []


def _of_rows(segment: Segment, rows: pa.Table) -> list[str]:
    """The problems in the rows of a segment."""
    problems = []
    seqs = np.unique(rows.column("seq").to_numpy())
    if not len(seqs) or (int(seqs[0]), int(seqs[-1])) != (segment.first_seq, segment.last_seq):
        problems.append(f"its rows are not those of messages {segment.first_seq} to {segment.last_seq}")
    elif len(seqs) != segment.last_seq - segment.first_seq + 1:
        gap = int(seqs[:-1][np.diff(seqs) > 1][0]) + 1
        problems.append(f"message {gap} is missing in it")
    catalog = segment.catalog
    messages = rows.filter(pa.array(rows.column("kind").to_numpy() != SESSION_MARK))
    for batch in messages.to_batches(max_chunksize=1 << 16):
        rejects = decode_tagged(batch, catalog, Options(on_error="quarantine")).rejects
        # A legal value that Arrow cannot represent is not damage: its change was decoded.
        damaged = rejects.filter(rejects.column("change_type").is_null())
        if damaged.num_rows:
            row = damaged.select(["seq", "reason"]).slice(0, 1).to_pylist()[0]
            more = f", and {damaged.num_rows - 1:,} more" if damaged.num_rows > 1 else ""
            problems.append(f"message {row['seq']} cannot be decoded: {row['reason']}{more}")
            break
    return problems
