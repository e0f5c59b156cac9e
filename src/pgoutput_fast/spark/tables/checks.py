"""Checks before any work whether the tables of a target fit the source, and where new tables begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgoutput_fast.schema.evolution import differ_in_case
from pgoutput_fast.schema.options import Options
from pgoutput_fast.spark.source.stream_files import Emitted
from pgoutput_fast.spark.tables.plan import DescribedTable, PlannedTable
from pgoutput_fast.spark.tables.problems import TableProblems
from pgoutput_fast.spark.tables.run import Run
from pgoutput_fast.spark.tables.sources import SegmentSource, Source
from pgoutput_fast.spark.tasks.tables import TablePart, rejects_of
from pgoutput_fast.tables.table import Mode

__all__ = ["begun_with_query", "checked_targets", "with_rows"]


def with_rows(run: Run, planned: Sequence[PlannedTable], source: Source) -> list[PlannedTable]:
    """The tables that exist or have changes.

    A server also describes tables without changes: before a change of a table that is published via the root of its
    partitions, it describes the partition of the row, too.
    """
    oids = {oid for each in planned if each.part.after is None for oid in each.part.oids}
    changed = frozenset(source.changed(sorted(oids)) if oids else ())
    return [
        each
        for each in planned
        if each.part.after is not None
        or not changed.isdisjoint(each.part.oids)
        or run.table(each.part.directory).known
    ]


def checked_targets(
    run: Run,
    planned: Sequence[PlannedTable],
    mode: Mode,
    source: Source,
    options: Options,
    problems: TableProblems,
) -> list[PlannedTable]:
    """Checks before any work that all tables can take the rows. Returns them with the types of the target's tables."""
    checked = []
    for each in planned:
        directory = each.part.directory
        if mode == "error" and run.table(directory).known is not None:
            raise ValueError(f"{run.store}/{directory} exists: use mode='append' or mode='overwrite'")
        with problems.of(directory):
            part = _checked(run, each.part, mode, source)
            if mode != "overwrite":
                _check_columns(run, each.described, part, options)
            checked.append(replace(each, part=part))
    return checked


def _checked(run: Run, part: TablePart, mode: Mode, source: Source) -> TablePart:
    table = run.table(part.directory)
    known, position = table.known, run.ordinal(part.directory)
    if table.folded:
        _check_case(run, part)
    if known is None:
        run.check_format(part.directory)
    if mode == "overwrite":
        table.check_overwrite()
    if mode != "overwrite":
        _check_stream(run, part.directory, source)
        _check_transactions(run, part.directory, source)
    if part.after is None or position is None:
        if mode == "append" and known is not None:
            run.check_format(part.directory)
            raise ValueError(
                f"{run.store}/{part.directory} has no position: something else wrote it. Use another target, or "
                "mode='overwrite'"
            )
    elif part.after > source.end_seq:
        raise ValueError(
            f"{run.store}/{part.directory} goes up to message {part.after}, but the source ends at message "
            f"{source.end_seq}: it is not the stream that the table was written from, or its last segments are "
            "missing. Pass all segments, or write to another target"
        )
    _check_gap(run, part.directory, part.after, source)
    if mode != "overwrite":
        _check_begun(run, part, source, is_new=position is None)
    if known is not None and known.partition_by != part.partitioning.columns:
        raise ValueError(
            f"{run.store}/{part.directory} is partitioned by {list(known.partition_by)}, not by "
            f"{list(part.partitioning.columns)}: a table keeps its partition columns. Pass them as partition_by=, "
            "or use another target"
        )
    target = part.decode.target if mode == "overwrite" else table.fitted(part.decode.target)
    rejects = run.table(rejects_of(part.directory))
    target, rejected = (
        each.in_files(None if mode == "overwrite" else each.known, schema)
        for each, schema in ((table, target), (rejects, part.rejects))
    )
    return replace(part, decode=replace(part.decode, target=target), rejects=rejected)


def _check_columns(run: Run, described: DescribedTable, part: TablePart, options: Options) -> None:
    """Checks that options do not omit existing columns of a table, which would silently become null."""
    known = run.table(part.directory).known
    there = [] if known is None else known.schema.names
    place, seq = f"{run.store}/{part.directory}", f"{options.metadata_prefix}seq"
    if there and seq not in there:
        raise ValueError(
            f"{place} has no column {seq}: it was written with another metadata_prefix. Pass that one, write "
            "to another target, or replace the table with mode='overwrite'"
        )
    # A column missing in the newest version was dropped: an option may omit it.
    sent = {column.name for column in described.resolved.versions[-1].columns}
    left_out = [name for name in there if name in sent and name not in part.decode.target.names]
    if left_out:
        raise ValueError(
            f"{place} has the column {left_out[0]}, which the options leave out: in new rows it would be null. "
            "Pass the options that the table was written with, write to another target, or replace the table "
            "with mode='overwrite'"
        )


def _check_case(run: Run, part: TablePart) -> None:
    """Checks the columns for a format in which `a` and `A` are the same name."""
    found = differ_in_case(part.decode.target.names)
    if found is not None:
        raise ValueError(
            f"{run.store}/{part.directory} cannot have the format {run.format!r}: the names of its columns "
            f"{found[0]!r} and {found[1]!r} differ only in case. Leave one out with Options(columns=...), or use "
            "another format"
        )


def _check_gap(run: Run, directory: str, after: int | None, source: Source) -> None:
    """Checks that the source has all messages after a position, or from its first one on if there is no position."""
    gap = source.gap(after)
    if gap is None:
        return
    if after is not None and gap[1] + 1 == source.first_seq:
        raise ValueError(
            f"{run.store}/{directory} goes up to message {after}, but the source begins at message "
            f"{source.first_seq}: the changes in between are gone. Load the table again with mode='overwrite'"
        )
    raise ValueError(
        f"{run.store}/{directory} cannot be written: the source lacks messages {gap[0]} to {gap[1]}, which come before "
        "others that it has. A segment is missing. Restore it. If it is lost, pass the paths of the segments after "
        "the gap, and replace the table with mode='overwrite' or use another target"
    )


def begun_with_query(
    run: Run,
    planned: Sequence[PlannedTable],
    source: SegmentSource,
    batch: Emitted,
    problems: TableProblems,
    *,
    named: bool,
    others: bool,
) -> list[PlannedTable]:
    """Determines where tables begin that a query has not written yet: at the beginning of the query.

    A table may be new on the server. It may also be new in `tables`, or its target was lost: then it needs the changes
    of earlier batches.

    Args:
        run: the run.
        planned: the tables.
        source: the segments.
        batch: the current batch of the query.
        problems: what becomes of the error of a table.
        named: whether the user named the tables.
        others: whether the target has tables beside these.

    Raises:
        ValueError: if the segments lack these changes, unless the table may have been created on the server meanwhile.
    """
    if all(each.part.after is not None for each in planned):
        return list(planned)
    first, began = batch.first, min(batch.began or 0, batch.first)
    gap = source.gap(began - 1, first) if began < first else None
    no_others = not others and all(each.part.after is None for each in planned)
    found = []
    for each in planned:
        part = each.part
        if part.after is None:
            # Rejects of earlier batches without their table, or a record of it: the table existed, and was lost, or was
            # stopped before its first commit.
            had_rejects = part.rejects_after is not None and part.rejects_after < first
            needed = named or had_rejects or part.directory in run.progress.tables or no_others
            with problems.of(part.directory):
                begin = _begin(run, part, source, batch, began, gap, needed=needed)
                found.append(replace(each, part=replace(part, after=begin - 1)))
        else:
            found.append(each)
    return found


def _begin(
    run: Run,
    part: TablePart,
    source: SegmentSource,
    batch: Emitted,
    began: int,
    gap: tuple[int, int] | None,
    *,
    needed: bool,
) -> int:
    """The first message of a table that a query has not written yet.

    Args:
        began: where the query began.
        gap: the first messages between there and the batch that are in no segment.
        needed: whether the table needs the messages before the batch.
    """
    first = batch.first
    if gap is not None and needed:
        raise ValueError(
            f"{run.store}/{part.directory} is not there, and the query goes on at message {first}. It began at "
            f"message {began}, but the segments lack messages {gap[0]} to {gap[1]}, where the table may have "
            "changes. Restore them. Or stop the query, and write the table from the segments that are there: "
            "write_tables(..., tables=[...], mode='overwrite')"
        )
    if batch.began is None and needed and source.has_before(first, part.oids):
        raise ValueError(
            f"{run.store}/{part.directory} is not there, and the query goes on at message {first}. Its checkpoint "
            "is of an earlier version, and does not say where the query began. Stop the query, and write the table "
            "from the segments that are there: write_tables(..., tables=[...], mode='overwrite')"
        )
    # A table is often new on the server, without changes in earlier segments.
    is_whole = batch.began is not None and gap is None
    return began if is_whole and source.has_before(first, part.oids) else first


def _check_begun(run: Run, part: TablePart, source: Source, *, is_new: bool) -> None:
    """Checks that the source has all rows of transactions that began before a position and commit after it."""
    if source.transactions != "committed":
        return
    after = part.after
    if after is None:
        # Tagged payloads may be a part of a stream, unless their state before is known. Segments begin with a whole
        # transaction, unless some were removed.
        if not source.knows_begun or not source.first_seq:
            return
        after = source.first_seq - 1
    begun = source.begun_before(after)
    gap = None if begun is None else source.gap(begun - 1)
    if gap is not None:
        raise ValueError(
            f"{run.store}/{part.directory} {'begins after' if is_new else 'goes up to'} message {after}. A "
            f"transaction that began at message {begun} commits only after it, and the source lacks messages "
            f"{gap[0]} to {gap[1]}, where it may have rows. Pass the segments from message {begun} on, too, or the "
            "payloads. If they are lost, mode='overwrite' replaces the table, with what is left of that transaction"
        )


def _check_stream(run: Run, directory: str, source: Source) -> None:
    """Checks that a table does not get changes of a different stream."""
    if source.streams is None:
        return
    position = run.ordinal(directory)
    source.streams.check(run.table(directory), position)
    if position is None or position.stream is None:  # otherwise its rejects are of the same stream
        rejects = rejects_of(directory)
        source.streams.check(run.table(rejects), run.ordinal(rejects))


def _check_transactions(run: Run, directory: str, source: Source) -> None:
    """Checks that a table is continued with the same kind of transactions."""
    position = run.ordinal(directory)
    if position is None or position.transactions is None:  # otherwise its rejects are of the same kind
        directory = rejects_of(directory)
        position = run.ordinal(directory)
    known = None if position is None else position.transactions
    if known is not None and known != source.transactions:
        raise ValueError(
            f"{run.store}/{directory} was written with transactions={known!r}. With {source.transactions!r} it would "
            f"lose rows, or get some twice. Pass transactions={known!r}, write to another target, or replace the "
            f"table by write_tables(..., transactions={source.transactions!r}, mode='overwrite')"
        )
