"""`pgoutput-fast check`: whether a server lets you capture, and what to do if it does not."""

from __future__ import annotations

from dataclasses import asdict

import typer

from pgoutput_fast.base.arguments import expect_given
from pgoutput_fast.cli.arguments import DSN, Json, PasswordCommand, Publications, SlotName
from pgoutput_fast.cli.problems import DONE, PROBLEM
from pgoutput_fast.cli.screen import line, objects

__all__ = ["check"]

_STYLES = {"error": "bold red", "warning": "yellow"}


def check(
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    publication: Publications = None,
    slot: SlotName = None,
    json: Json = False,
) -> None:
    """Check what a capture needs. Changes nothing. The exit status is 1 if something prevents it.

    Example: pgoutput-fast check --dsn "dbname=shop" --publication orders --slot lake
    """
    expect_given({"--publication": publication})
    from pgoutput_fast.capture import check as check_server

    report = check_server(dsn, publication or [], slot)
    if json:
        objects(
            [
                {
                    "ok": report.ok,
                    "server": report.server.major,
                    "database": report.server.database,
                    "tables": report.tables,
                    "findings": [asdict(each) for each in report.findings],
                }
            ]
        )
    else:
        first, *findings = str(report).split("\n")
        line(first)
        for each, text in zip(report.findings, findings, strict=True):
            line(text, _STYLES.get(each.level, ""))
        if report.ok:
            line("ready", "green")
    raise typer.Exit(DONE if report.ok else PROBLEM)
