"""`pgoutput-fast inspect`: the messages of a file, a segment or a slot, for a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.display import counted
from pgoutput_fast.cli.arguments import DSN, Json, PasswordCommand, Publications, SlotName, Tables
from pgoutput_fast.cli.context import Context, Message
from pgoutput_fast.cli.filters import Filters
from pgoutput_fast.cli.inputs import Input
from pgoutput_fast.cli.messages import show, writer
from pgoutput_fast.cli.payloads import InputError
from pgoutput_fast.cli.problems import DONE, PROBLEM
from pgoutput_fast.cli.reading import As, Inputs, messages_of, the_inputs
from pgoutput_fast.cli.summary import Summary

__all__ = ["Counts", "Follow", "Kinds", "Limit", "Lsns", "Xids", "expect_end", "inspect", "inspect_inputs"]

Xids = Annotated[list[int] | None, typer.Option("--xid", metavar="XID", min=0, help="only this transaction")]
Lsns = Annotated[
    str | None,
    typer.Option(
        "--lsn", metavar="FROM..TO", help="only these LSNs, both included, such as 0/1B0D988..0/1B0E000"
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", "-k", metavar="KIND", help="only these kinds of messages, such as insert,update"),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="show at most this many messages")
]
Counts = Annotated[bool, typer.Option("--summary", help="count the messages of each table and kind instead")]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="continue with new messages of a slot or a directory of segments"),
]


def inspect(
    inputs: Inputs = None,
    kind_of_input: As = None,
    table: Tables = None,
    xid: Xids = None,
    lsn: Lsns = None,
    kind: Kinds = None,
    limit: Limit = None,
    json: Json = False,
    summary: Counts = False,
    follow: Follow = False,
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    slot: SlotName = None,
    publication: Publications = None,
) -> None:
    """Show messages. A slot is only peeked at. The exit status is 1 if a message is damaged.

    An input is a file of pg_recvlogical, of raw messages or of hex digits, a Parquet or Arrow file with a binary
    column, a segment, a directory of segments, or hex digits themselves.

    Example: pgoutput-fast inspect changes.bin --table public.orders --kind insert --limit 10

    Example: pgoutput-fast inspect segments/ --summary

    Example: pgoutput-fast inspect --dsn dbname=shop --slot lake --publication orders
    """
    expect_end(summary=summary, follow=follow)
    filters = Filters.of(table, xid, lsn, kind)
    most = limit if filters.is_open and not follow else None
    with the_inputs(inputs, kind_of_input, dsn, slot, publication, most=most, follow=follow) as found:
        inspect_inputs(found, filters, limit, json=json, summary=summary, follow=follow)


def expect_end(*, summary: bool, follow: bool) -> None:
    """
    Raises:
        UsageError: if what never ends is to be counted.
    """
    if summary and follow:
        raise UsageError("--summary counts what is there, and --follow never ends: leave out one of them")


def inspect_inputs(
    inputs: Sequence[Input],
    filters: Filters,
    limit: int | None,
    *,
    json: bool,
    summary: bool = False,
    follow: bool = False,
) -> None:
    """Shows the messages of inputs.

    Args:
        inputs: the inputs.
        filters: the messages to show.
        limit: maximum number of messages; None for all.
        json: whether to write JSON.
        summary: whether to count the messages instead.
        follow: whether to wait for more.

    Raises:
        InputError: for an input that is damaged, empty, or lacks a table of the filters.
        Exit: with the status of the command.
    """
    messages = _Counted(inputs, follow)
    totals = Summary()
    try:
        count, damaged = show(messages, filters, limit, totals.add if summary else writer(json=json))
    finally:
        # Also of an input that cannot be read to its end.
        if summary:
            totals.show(json=json)
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
