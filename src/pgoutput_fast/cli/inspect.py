"""`pgoutput-fast inspect`: the messages of a file, a segment or a slot, for a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from pgoutput_fast.cli.arguments import DSN, Json, Publications, SlotName
from pgoutput_fast.cli.context import Context, Message
from pgoutput_fast.cli.filters import Filters
from pgoutput_fast.cli.inputs import Input
from pgoutput_fast.cli.messages import counted, show
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.cli.problems import DONE, PROBLEM
from pgoutput_fast.cli.reading import As, Inputs, Table, messages_of, the_inputs

__all__ = ["Follow", "Kinds", "Limit", "Lsns", "Xids", "inspect", "inspect_inputs"]

Xids = Annotated[list[int] | None, typer.Option("--xid", metavar="XID", min=0, help="only this transaction")]
Lsns = Annotated[
    str | None,
    typer.Option(
        "--lsn", metavar="FROM..TO", help="only these LSNs, both included, such as 0/1B0D988..0/1B0E000"
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", "-k", metavar="KIND", help="only this kind of message, such as insert"),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="show at most this many messages")
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="go on with what comes next: for a slot or a directory of segments"),
]


def inspect(
    inputs: Inputs = None,
    kind_of_input: As = None,
    table: Table = None,
    xid: Xids = None,
    lsn: Lsns = None,
    kind: Kinds = None,
    limit: Limit = None,
    json: Json = False,
    follow: Follow = False,
    dsn: DSN = "",
    slot: SlotName = None,
    publication: Publications = None,
) -> None:
    """Show messages. Of a slot, nothing is consumed. The exit status is 1 if a message is damaged.

    An input is a file of pg_recvlogical, of raw messages or of hex digits, a Parquet or Arrow file with a binary
    column, a segment, a directory of segments, or hex digits themselves.

    Example: pgoutput-fast inspect changes.bin --table public.orders --kind insert --limit 10

    Example: pgoutput-fast inspect --dsn dbname=shop --slot lake --publication orders
    """
    filters = Filters.of(table, xid, lsn, kind)
    most = limit if filters.is_open and not follow else None
    with the_inputs(inputs, kind_of_input, dsn, slot, publication, most=most, follow=follow) as found:
        inspect_inputs(found, filters, limit, json=json, follow=follow)


def inspect_inputs(
    inputs: Sequence[Input], filters: Filters, limit: int | None, *, json: bool, follow: bool = False
) -> None:
    """Shows the messages of inputs.

    Args:
        inputs: the inputs.
        filters: the messages to show.
        limit: maximum number of messages; None for all.
        json: whether to write JSON.
        follow: whether to wait for more.

    Raises:
        InputError: for an input that is damaged, empty, or lacks a table of the filters.
        Exit: with the status of the command.
    """
    messages = _Counted(inputs, follow)
    count, damaged = show(messages, filters, limit, json=json)
    sys.stdout.flush()
    if count != limit:
        filters.expect_tables()
        if not messages.read and all(each.name == inputs[0].name for each in inputs):
            _say_empty(inputs[0])
    if filters.without_lsn:
        print(f"left out: {counted(filters.without_lsn, 'message')} without a known LSN", file=sys.stderr)
    elif not count and limit != 0 and not filters.is_open:
        print("no message matches the filters", file=sys.stderr)
    if damaged:
        print(f"damaged: {counted(damaged, 'message')}", file=sys.stderr)
    raise typer.Exit(PROBLEM if damaged else DONE)


def _say_empty(source: Input) -> None:
    if not source.name.startswith("slot "):
        raise InputError(f"{source.name} has no messages")
    print(f"{source.name} has no messages now", file=sys.stderr)


class _Counted:
    """The messages of inputs, counted."""

    def __init__(self, inputs: Sequence[Input], follow: bool) -> None:
        self._inputs, self._follow = inputs, follow
        self.read = 0

    def __iter__(self) -> Iterator[Message]:
        for source in self._inputs:
            for message in messages_of(source, Context(), follow=self._follow):
                self.read += 1
                yield message
