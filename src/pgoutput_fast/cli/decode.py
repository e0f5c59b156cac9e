"""`pgoutput-fast decode`: the messages of a file, a segment or a slot as tables."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pgoutput_fast.base.arguments import expect_given
from pgoutput_fast.base.display import counted
from pgoutput_fast.base.private_directory import PrivateDirectory
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.cli.arguments import DSN, Json, PasswordCommand, Publications, SlotName, Tables
from pgoutput_fast.cli.filters import expect_tables, table_names
from pgoutput_fast.cli.inputs import Input, Segments
from pgoutput_fast.cli.parts import Parts
from pgoutput_fast.cli.payloads import DamagedInputError, InputError, Payloads, WithoutEnd
from pgoutput_fast.cli.reading import As, Inputs, segments_of, the_inputs
from pgoutput_fast.cli.screen import objects, table
from pgoutput_fast.cli.targets import Format, format_of, format_table, replaced, write_tables
from pgoutput_fast.cli.terminating import terminating
from pgoutput_fast.decoding.decoder import Decoder, decode_tagged
from pgoutput_fast.decoding.result import Decoded
from pgoutput_fast.protocol.kinds import MSG_MESSAGE
from pgoutput_fast.schema.options import Options
from pgoutput_fast.segments.committed import CommittedChanges
from pgoutput_fast.segments.listing import segment_outcomes
from pgoutput_fast.segments.read import read_segment
from pgoutput_fast.storage.stores import open_store

__all__ = ["decode"]

Target = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="PATH",
        show_default=False,
        help="a directory, or a file of DuckDB; it must not exist",
    ),
]
To = Annotated[
    Format | None,
    typer.Option(
        "--to", help="the format; by default, the name of the target decides: .duckdb, or else Parquet"
    ),
]


def decode(
    inputs: Inputs = None,
    out: Target = None,
    to: To = None,
    kind_of_input: As = None,
    table: Tables = None,
    as_sent: Annotated[
        bool, typer.Option("--as-sent", help="all changes, not only those of transactions that committed")
    ] = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="lists, maps and structs as JSON texts; CSV and JSON lines always have them"
        ),
    ] = False,
    drop_cut_off: Annotated[
        bool,
        typer.Option(
            "--drop-cut-off", help="leave out an incomplete last message, as in a file that is still written"
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace what an earlier call wrote")
    ] = False,
    json: Json = False,
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    slot: SlotName = None,
    publication: Publications = None,
) -> None:
    """Decode messages into tables: a file for each, or a table of DuckDB. A slot is only peeked at.

    The inputs are those of inspect. What cannot be decoded, or has no Arrow form, goes to _rejects.

    Example: pgoutput-fast decode changes.bin --to parquet --out tables

    Example: pgoutput-fast decode segments --table public.orders --out shop.duckdb
    """
    expect_given({"--out": out})
    assert out is not None
    form = to or format_of(out)
    tables = table_names(table)
    options = Options(
        transactions="as_sent" if as_sent else "committed",
        on_error="quarantine",
        tables=tables,
        plain=plain or form in (Format.CSV, Format.JSONL),
    )
    with (
        terminating(),
        the_inputs(inputs, kind_of_input, dsn, slot, publication) as sources,
        replaced(out, overwrite=overwrite) as target,
        PrivateDirectory(out.absolute().parent) as directory,
        Parts(directory) as parts,
    ):
        if drop_cut_off:
            sources = [each if isinstance(each, Segments) else WithoutEnd(each) for each in sources]
        with _progress(sources) as bar:
            try:
                relations, waiting = _decode_all(sources, options, parts, bar)
            except DamagedInputError as problem:
                if not problem.cut_off:
                    raise
                raise InputError(
                    f"{problem}. With --drop-cut-off you decode the messages before it"
                ) from None
            expect_tables(tables, relations)
            parts.finish()
            write_tables(parts.tables.values(), target, form, bar.writing)
    _report(parts, waiting, json=json)


def _decode_all(
    sources: Sequence[Input], options: Options, parts: Parts, bar: _Bar
) -> tuple[list[Relation], int]:
    """Decodes inputs. Returns (the relations that they describe, the number of transactions without an end)."""
    relations: list[Relation] = []
    waiting = 0
    for source in sources:
        if isinstance(source, Segments):
            waiting += _decode_segments(source, options, parts, bar, relations)
        else:
            waiting += _decode_payloads(source, options, parts, bar, relations)
    return relations, waiting


def _decode_payloads(
    source: Payloads,
    options: Options,
    parts: Parts,
    bar: _Bar,
    relations: list[Relation],
) -> int:
    rows = 0
    with Decoder(options) as decoder:
        for batch in source.batches():
            if batch.starts_session:
                decoder.start_session()
            for decoded in decoder.stream([_columns(batch.payloads, batch.lsns)]):
                parts.add(decoded)
                rows += _rows(decoded)
            bar.advance(batch.done, rows)
        relations += decoder.catalog.relations
        return len(decoder.state.open_txns) if options.transactions == "committed" else 0


def _columns(payloads: pa.Array, lsns: pa.Array | None) -> pa.Table:
    return pa.table({"payload": payloads} if lsns is None else {"payload": payloads, "lsn": lsns})


def _decode_segments(
    source: Segments,
    options: Options,
    parts: Parts,
    bar: _Bar,
    relations: list[Relation],
) -> int:
    tagged = dataclasses.replace(options, transactions="as_sent")
    committed = CommittedChanges(open_store(source.path), tagged)
    rows = open_txns = 0
    for done, segment in enumerate(segments_of(source, gaps=False), 1):
        relations += segment.catalog.relations
        found = read_segment(segment.path)
        if options.transactions == "committed":
            results: Iterator[Decoded] = (
                decode_tagged(batch, catalog, tagged) for batch, catalog in committed.of(found, segment.state)
            )
        else:
            results = (decode_tagged(batch, segment.catalog, tagged) for batch in found.to_batches())
        for decoded in results:
            parts.add(decoded)
            rows += _rows(decoded)
        if options.transactions == "committed":
            _add_messages(source, found, options, parts)
        open_txns = len(segment.open_txns)
        bar.advance(done, rows)
    return open_txns if options.transactions == "committed" else 0


def _add_messages(source: Segments, rows: pa.Table, options: Options, parts: Parts) -> None:
    """Adds the logical messages of a segment that were not rolled back. The committed changes do not include them."""
    found = rows.filter(pc.equal(rows.column("kind"), MSG_MESSAGE))
    if found.num_rows:
        (batch,) = found.combine_chunks().to_batches()
        parts.add(decode_tagged(batch, Catalog(), options, segment_outcomes(source.path)))


def _rows(decoded: Decoded) -> int:
    return sum(each.batch.num_rows for each in decoded.changes)


def _report(parts: Parts, waiting: int, *, json: bool) -> None:
    """Reports the result of decoding the messages."""
    found = [(format_table(each), each.rows) for each in parts.tables.values()]
    if json:
        objects([{"tables": dict(found), "transactions_without_end": waiting}])
        return
    if found:
        table(["table", "rows"], [(name, f"{rows:,}") for name, rows in sorted(found)], right=["rows"])
    for name, rows in found:
        if name == "_rejects":
            _report_rejects(parts.undecoded, rows - parts.undecoded)
    if waiting:
        print(
            f"left out: {counted(waiting, 'transaction')} without an end in the input. --as-sent has the changes",
            file=sys.stderr,
        )
    if not found:
        print("no changes committed in the input", file=sys.stderr)


def _report_rejects(messages: int, values: int) -> None:
    if messages:
        print(f"could not be decoded: {counted(messages, 'message')}: see _rejects", file=sys.stderr)
    if values:
        print(f"without an Arrow form: {counted(values, 'value')}: see _rejects", file=sys.stderr)


class _Bar:
    """The progress of a decode, shown only if standard error is a terminal.

    Args:
        bar: the progress bar; None to show nothing.
        total: the size of the input, if known.
    """

    def __init__(self, bar: Progress | None, total: int | None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("decoding", total=total, rows=0)

    def advance(self, done: int, rows: int) -> None:
        """Shows how much was read, and the number of rows."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, rows=rows)

    def writing(self, name: str) -> None:
        """Shows the table that is being written."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"writing {name}")


@contextmanager
def _progress(sources: Sequence[Input]) -> Iterator[_Bar]:
    """Shows a bar on a terminal during the block."""
    if not sys.stderr.isatty():
        yield _Bar(None, None)
        return
    (source, *others) = sources
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        yield _Bar(bar, None if others or isinstance(source, Segments) else source.size)
