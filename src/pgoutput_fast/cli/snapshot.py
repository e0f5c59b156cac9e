"""`pgoutput-fast snapshot`: the tables of publications as Parquet files, all as of one snapshot."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.base.display import escaped
from pgoutput_fast.cli.arguments import DSN, Json, PasswordCommand, Publications, SlotName, Tables
from pgoutput_fast.cli.problems import DONE, PROBLEM
from pgoutput_fast.cli.screen import console, line, objects, size, table
from pgoutput_fast.cli.terminating import terminating
from pgoutput_fast.protocol.lsn import format_lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgoutput_fast.capture import Finding, Loaded, Snapshot

__all__ = ["snapshot"]


def snapshot(
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    publication: Publications = None,
    target: Annotated[
        Path | None, typer.Option("--target", metavar="DIR", help="where each table gets a directory")
    ] = None,
    slot: SlotName = None,
    tables: Tables = None,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="sessions that read at the same time")] = 1,
    json: Json = False,
) -> None:
    """Write the published tables as Parquet files, all as of one moment.

    With --slot, the command creates this slot, which sends what changes after that moment: a capture or your own
    program continues from it. Without --slot, nothing stays on the server. If the command fails or is stopped, it drops
    the slot. Complete tables stay in the directory: remove them, or name another one, before you run it again.

    Example: pgoutput-fast snapshot --dsn dbname=shop --publication shop --target tables/ --slot to_lake
    """
    expect_given({"--publication": publication, "--target": target})
    assert publication is not None
    assert target is not None
    if target.exists() and not target.is_dir():
        raise UsageError(f"--target must be a directory; {target} is a file")
    from pgoutput_fast.capture import Snapshot, check, progress_bar
    from pgoutput_fast.capture.prerequisites import explaining_refusals

    def findings() -> Sequence[Finding]:
        return check(dsn, publication, slot).findings

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # SIGTERM then ends loading by an exception, so that the slot is dropped.
    with (
        terminating(),
        explaining_refusals(findings),
        Snapshot(dsn, publication, slot, tables=tables) as source,
    ):
        try:
            screen = console(error=True)
            bar = progress_bar(console=screen, transient=True) if screen.is_terminal else nullcontext()
            with bar as progress:
                loaded = source.load_to(target, threads=threads, progress=progress)
        except BaseException:
            source.drop()
            raise
    _show(source, loaded, slot, json)
    if loaded.lost:
        # The log contains the reasons.
        line(f"not loaded: {', '.join(map(escaped, loaded.lost))}", "bold red", error=True)
    raise typer.Exit(PROBLEM if loaded.lost else DONE)


def _show(source: Snapshot, loaded: Loaded, slot: str | None, json: bool) -> None:
    position = format_lsn(source.consistent_lsn)
    rows = sorted(loaded.tables.values(), key=lambda each: each.name)
    if json:
        objects(
            {
                "table": each.name,
                "path": each.path,
                "rows": each.rows,
                "bytes": each.nbytes,
                "rejects": each.rejects,
                "consistent_lsn": position,
                "slot": slot,
            }
            for each in rows
        )
        return
    table(
        ["table", "rows", "read", "rejects", "directory"],
        [
            (escaped(each.name), f"{each.rows:,}", size(each.nbytes), f"{each.rejects:,}", each.path)
            for each in rows
        ],
        right=["rows", "read", "rejects"],
    )
    begins = "" if slot is None else f"; slot {slot} sends what changes after that"
    line(f"the tables as they were at {position}{begins}")
