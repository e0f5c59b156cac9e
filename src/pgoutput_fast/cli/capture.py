"""`pgoutput-fast capture`: the changes of a slot as segments."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.cli.arguments import DSN, Failover, PasswordCommand, Publications, SlotName
from pgoutput_fast.cli.services import (
    RETRY_SECONDS,
    MetricsAddress,
    MetricsFile,
    Quiet,
    RetrySeconds,
    name_value_pairs,
    position_or_now,
    prepare_process,
    stop_on_signals,
)

if TYPE_CHECKING:
    from pgoutput_fast.capture import Capture, Retention

__all__ = ["capture"]

_DAY_SECONDS = 86_400.0


class Through(StrEnum):
    """How a slot is read."""

    WALSENDER = "walsender"
    SQL = "sql"


_Path: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="the directory of the segments, or a URI such as s3://bucket/segments"),
]
_Through: TypeAlias = Annotated[
    Through, typer.Option(help="how to read the slot; sql needs no replication connection")
]
_TwoPhase: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--two-phase",
        help="a slot that the capture creates decodes prepared transactions when they are prepared",
    ),
]
_Adopt: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--adopt",
        help="take over a slot that somebody else has read; nobody else may read it from then on",
    ),
]
_PluginOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="set an option of the output plugin, such as binary=true; may be repeated",
    ),
]
_Rows: TypeAlias = Annotated[int | None, typer.Option(help="close a segment after this many rows")]
_Nbytes: TypeAlias = Annotated[
    int | None, typer.Option("--bytes", help="close a segment after this many bytes of payloads")
]
_Seconds: TypeAlias = Annotated[float | None, typer.Option(help="close a segment after this many seconds")]
_FileMode: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="OCTAL",
        help="the maximum permissions of files, such as 640; by default, the umask decides",
    ),
]
_KeepDays: TypeAlias = Annotated[
    float | None, typer.Option(metavar="DAYS", help="remove segments that are older than this")
]
_KeepUnread: TypeAlias = Annotated[
    bool, typer.Option("--keep-unread", help="remove only segments that no consumer needs any more")
]
_Until: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LSN|now", help="stop when everything that committed up to this position is durable"
    ),
]
_ReceiveTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="reconnect if the server does not answer for this long; 0 for never",
    ),
]
_Wait: TypeAlias = Annotated[
    bool,
    typer.Option("--wait", help="wait until another process that captures into the directory has ended"),
]
_LogSeconds: TypeAlias = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="how often to log the metrics")
]


def capture(
    context: typer.Context,
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    slot: SlotName = None,
    publication: Publications = None,
    path: _Path = None,
    through: _Through = Through.WALSENDER,
    two_phase: _TwoPhase = False,
    failover: Failover = False,
    adopt: _Adopt = False,
    plugin_option: _PluginOption = None,
    rows: _Rows = None,
    nbytes: _Nbytes = None,
    seconds: _Seconds = None,
    file_mode: _FileMode = None,
    keep_days: _KeepDays = None,
    keep_unread: _KeepUnread = False,
    until: _Until = None,
    retry_seconds: RetrySeconds = RETRY_SECONDS,
    receive_timeout: _ReceiveTimeout = 60.0,
    wait: _Wait = False,
    log_seconds: _LogSeconds = None,
    metrics_file: MetricsFile = None,
    metrics_address: MetricsAddress = None,
    quiet: Quiet = False,
) -> None:
    """Write the changes of a slot as segments, until SIGTERM or Ctrl-C.

    It confirms to the server only what is durable. If it is killed, run it again: it continues after its newest
    segment.

    Example: pgoutput-fast capture --dsn dbname=shop --slot to_lake --publication shop --path segments/
    """
    expect_given({"--slot": slot, "--publication": publication, "--path": path})
    end = position_or_now(until)
    prepare_process(context)
    from pgoutput_fast.capture import CaptureError
    from pgoutput_fast.capture.own_process import interrupt_nobody
    from pgoutput_fast.capture.service import run_in_turn

    if context.obj:
        interrupt_nobody()
    stop = stop_on_signals(quiet=quiet)
    service = _service(context.params)
    run_in_turn(service, stop, wait=wait, until_lsn=end, retry_seconds=retry_seconds)
    if until is not None and stop.is_set():
        raise CaptureError(
            f"it was stopped before everything that committed up to {until} was durable. "
            "Run it again: it continues after its newest segment"
        )


def _service(given: Mapping[str, Any]) -> Capture:
    """Returns the capture described by the options of the command.

    Raises:
        UsageError: for an option with a wrong value.
    """
    from pgoutput_fast.capture import Capture, Limits

    limits = {name: given[name] for name in ("rows", "nbytes", "seconds") if given[name] is not None}
    same = ("two_phase", "failover", "adopt", "log_seconds", "metrics_file", "metrics_address")
    try:
        return Capture(
            given["dsn"],
            given["slot"],
            given["publication"],
            given["path"],
            overrides=name_value_pairs("--plugin-option", given["plugin_option"], "binary=true"),
            limits=Limits(**limits),
            through=given["through"].value,
            retention=_retention(given["keep_days"], given["keep_unread"]),
            file_mode=None if given["file_mode"] is None else _mode(given["file_mode"]),
            receive_timeout=given["receive_timeout"] or None,
            **{name: given[name] for name in same},
        )
    except ValueError as problem:
        raise UsageError(str(problem)) from problem


def _retention(keep_days: float | None, keep_unread: bool) -> Retention | None:
    from pgoutput_fast.capture import Retention

    if keep_days is None and not keep_unread:
        return None
    older_than = None if keep_days is None else keep_days * _DAY_SECONDS
    return Retention(older_than=older_than, consumed=keep_unread)


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise UsageError(f"--file-mode must be octal digits, such as 640; not {text!r}") from None
