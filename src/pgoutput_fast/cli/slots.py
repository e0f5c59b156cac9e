"""`pgoutput-fast slots`: the replication slots of a server."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.base.display import escaped, no_such_name
from pgoutput_fast.cli.arguments import DSN, Failover, Json, PasswordCommand, Publications
from pgoutput_fast.cli.problems import DONE, PROBLEM
from pgoutput_fast.cli.screen import line, lsn_text, objects, size, table

if TYPE_CHECKING:
    from pgoutput_fast.capture import Finding, Slot

__all__ = ["alter", "create", "drop", "ls"]

_Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="name of the slot")]


def ls(dsn: DSN = "", password_command: PasswordCommand = "", json: Json = False) -> None:
    """Show the logical slots of a server, and what each one keeps.

    It lists the slots of all databases. "kept" is how much of its log (WAL) the server must keep for the slot. A slot
    whose state is "lost" cannot be read any more: drop it.

    Example: pgoutput-fast slots ls --dsn dbname=shop
    """
    from pgoutput_fast.capture import list_slots

    found = list_slots(dsn)
    if json:
        objects(map(_values, found))
    elif not found:
        line("the server has no logical slot")
    else:
        table(
            ["name", "plugin", "database", "active", "confirmed", "kept", "state"],
            [
                (
                    each.name,
                    each.plugin,
                    escaped(each.database),
                    "no" if each.active_pid is None else f"pid {each.active_pid}",
                    lsn_text(each.confirmed_flush_lsn),
                    None if each.kept_bytes is None else size(each.kept_bytes),
                    _state(each),
                )
                for each in found
            ],
            right=["kept"],
        )


def create(
    name: _Name = "",
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    publication: Publications = None,
    two_phase: Annotated[
        bool,
        typer.Option(
            "--two-phase", help="decode prepared transactions when they are prepared (15 and later)"
        ),
    ] = False,
    failover: Failover = False,
    json: Json = False,
) -> None:
    """Create a slot for pgoutput.

    From then on the server keeps its log (WAL) for the slot, until somebody reads the slot or drops it.

    With --publication, the command first checks what a capture of these publications needs. It creates no slot if
    something is missing: a slot that is older than its publication cannot be read.

    Example: pgoutput-fast slots create to_lake --dsn dbname=shop --publication shop
    """
    expect_given({"NAME": name})
    from pgoutput_fast.capture import check, create_slot, find_slot
    from pgoutput_fast.capture.prerequisites import explaining_refusals
    from pgoutput_fast.postgres.slots import check_name

    try:
        check_name(name)
    except ValueError as problem:
        raise UsageError(str(problem)) from None

    if publication:
        wrong = [each for each in check(dsn, publication, name).findings if each.level == "error"]
        for each in wrong:
            line(str(each), "bold red", error=True)
        if wrong:
            line(f"slot {name} was not created", error=True)
            raise typer.Exit(PROBLEM)
    if find_slot(dsn, name) is not None:
        raise ValueError(
            f"slot {name} exists already: choose another name, or drop it with pgoutput-fast slots drop. A capture "
            "can read a slot that is there"
        )

    def findings() -> list[Finding]:
        # A slot needs no publication.
        found = check(dsn, publication or [], name).findings
        return [each for each in found if publication or each.subject != "publications"]

    with explaining_refusals(findings):
        made = create_slot(dsn, name, two_phase=two_phase, failover=failover)
    if json:
        objects([_values(made)])
    else:
        line(
            f"created slot {made.name} of database {escaped(made.database)}; it sends what commits after "
            f"{lsn_text(made.confirmed_flush_lsn)}"
        )


def alter(
    name: _Name = "",
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    failover: Annotated[
        bool | None,
        typer.Option(
            "--failover/--no-failover",
            show_default=False,
            help="whether standbys may synchronize the slot (17 and later)",
        ),
    ] = None,
) -> None:
    """Change a slot that exists. Nobody may read it meanwhile.

    With --failover, standbys may synchronize the slot, so that it survives a failover.

    Example: pgoutput-fast slots alter to_lake --dsn dbname=shop --failover
    """
    expect_given({"NAME": name})
    if failover is None:
        raise UsageError("nothing to change: pass --failover or --no-failover")
    from pgoutput_fast.capture import alter_slot, list_slots

    found = {each.name: each for each in list_slots(dsn)}
    if name not in found:
        raise LookupError(no_such_name("slot", name, found))
    alter_slot(dsn, name, failover=failover)
    line(f"standbys may {'' if failover else 'not '}synchronize slot {name}")


def drop(
    name: _Name = "",
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="do not ask for confirmation; required without a terminal")
    ] = False,
) -> None:
    """Drop a slot, so that the server keeps no log for it.

    The server then removes the log (WAL) that only this slot keeps. Nobody can read these changes any more.

    Example: pgoutput-fast slots drop to_lake --dsn dbname=shop --yes
    """
    expect_given({"NAME": name})
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("this is not a terminal, so nobody can confirm: pass --yes to drop the slot")
    from pgoutput_fast.capture import drop_slot, list_slots

    found = {each.name: each for each in list_slots(dsn)}
    if name not in found:
        raise LookupError(no_such_name("slot", name, found))
    if not yes and not _agreed(found[name]):
        line(f"slot {name} was not dropped", error=True)
        raise typer.Exit(PROBLEM)
    if not drop_slot(dsn, name):
        raise LookupError(f"there is no slot {name} any more: somebody else has dropped it")
    line(f"dropped slot {name}")
    raise typer.Exit(DONE)


def _agreed(slot: Slot) -> bool:
    """Asks for confirmation to drop a slot.

    Raises:
        KeyboardInterrupt: after Ctrl-C, or at the end of the input.
    """
    kept = "nothing" if slot.kept_bytes is None else size(slot.kept_bytes)
    line(
        f"the server keeps {kept} of its log for slot {slot.name} of database {escaped(slot.database)}",
        error=True,
    )
    try:
        return typer.confirm("Drop the slot?", err=True)
    except typer.Abort:
        typer.echo(err=True)  # the question has no newline
        raise KeyboardInterrupt from None


def _state(slot: Slot) -> str:
    if slot.invalidated is not None:
        return f"lost: {slot.invalidated}"
    return slot.wal_status or "usable"


def _values(slot: Slot) -> dict[str, Any]:
    """The values of a slot for programs. LSNs are texts in the server's format."""
    values = asdict(slot)
    for name in ("restart_lsn", "confirmed_flush_lsn"):
        values[name] = lsn_text(values[name])
    return values
