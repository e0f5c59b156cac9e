"""Arguments shared by several commands."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

import typer

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.protocol.lsn import parse_lsn

__all__ = [
    "DSN",
    "Failover",
    "IcebergCatalog",
    "Json",
    "PasswordCommand",
    "Publications",
    "SlotName",
    "Tables",
    "Target",
    "position_at",
]


def _with_command(context: typer.Context, dsn: str) -> str:
    """The connection string with the command for its password, whose option is eager: it is read before."""
    command = context.params.get("password_command")
    if not command:
        return dsn
    from pgoutput_fast.postgres.passwords import Dsn
    from pgoutput_fast.postgres.passwords import PasswordCommand as Command

    try:
        return Dsn(dsn, Command(command))
    except ValueError as problem:
        raise UsageError(f"--password-command: {problem}") from None


DSN: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="DSN",
        envvar="PGOUTPUT_FAST_DSN",
        show_envvar=False,
        show_default=False,
        help="libpq's connection string or URI; by default $PGOUTPUT_FAST_DSN, or libpq's own variables",
        callback=_with_command,
    ),
]
# Eager: it is parsed before DSN, whose callback uses it. A command needs both.
PasswordCommand: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        envvar="PGOUTPUT_FAST_PASSWORD_COMMAND",
        show_envvar=False,
        show_default=False,
        help="a command that prints the password, such as a token; it runs at each connection, without a shell",
        is_eager=True,
    ),
]
Publications: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--publication",
        "-p",
        metavar="NAME",
        help="a publication; may be repeated",
    ),
]
SlotName: TypeAlias = Annotated[
    str | None, typer.Option("--slot", "-s", metavar="NAME", help="the replication slot")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="one JSON object a line, for programs")]
Failover: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--failover", help="let standbys synchronize the slot, so that it survives a failover (17 and later)"
    ),
]
IcebergCatalog: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="a property of the pyiceberg catalog that has the tables; may be repeated",
    ),
]
Tables: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--table", "-t", metavar="TABLE", help="only this table, such as public.orders; may be repeated"
    ),
]
Target: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="TARGET", show_default=False, help="target of the mirror: a directory or a URI"),
]


def position_at(text: str) -> datetime | int:
    """The value of `--at`: a time with a time zone, or an LSN.

    Raises:
        UsageError: if it is neither.

    >>> position_at("0/10"), position_at("2026-11-29 12:00+01:00").isoformat()
    (16, '2026-11-29T12:00:00+01:00')
    """
    try:
        return parse_lsn(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at: {text} is neither a time, such as 2026-11-29T12:00:00+00:00, nor an LSN, such as 0/16B3748"
        ) from None
    if time.tzinfo is None:
        raise UsageError(f"--at: {text} needs a time zone, such as {time.isoformat()}+00:00")
    return time
