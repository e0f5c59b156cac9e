"""`pgoutput-fast mirror`: tables of a lake that follow those of a server."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pgoutput_fast.base.arguments import UsageError, expect_given
from pgoutput_fast.base.display import some_of
from pgoutput_fast.cli.arguments import DSN, Failover, IcebergCatalog, PasswordCommand, Publications, SlotName
from pgoutput_fast.cli.services import (
    RETRY_SECONDS,
    MetricsAddress,
    MetricsFile,
    Numeric,
    Quiet,
    RetrySeconds,
    catalog_properties,
    numeric_type,
    position_or_now,
    prepare_process,
    seconds_in,
    stop_on_signals,
)

if TYPE_CHECKING:
    from pgoutput_fast.mirror import Mirror, TableStatus

__all__ = ["mirror"]

_log = logging.getLogger("pgoutput_fast.mirror")


_Adopt: TypeAlias = Annotated[
    bool, typer.Option("--adopt", help="take over an existing slot; nobody else may read it from then on")
]
_Threads: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="sessions that read during a load: a large table, or as many small ones at the same time",
    ),
]
_Target: TypeAlias = Annotated[
    str | None, typer.Option(metavar="DIR", help="a directory, or a URI such as s3://bucket/lake")
]
_Tables: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        "-t",
        metavar="NAME",
        help="only this published table, such as public.orders, or those of a pattern such as 'public.*'; may be "
        "repeated",
    ),
]
_Exclude: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="not this table, or those of a pattern; may be repeated"),
]
_Snapshot: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="shared|ranges",
        help="read all tables of a load in one transaction (shared), or each range of a large table in its own "
        "(ranges), so that VACUUM can remove old rows meanwhile",
    ),
]
_Format: TypeAlias = Annotated[
    str, typer.Option(metavar="delta|iceberg|duckdb|ducklake", help="the format of the current tables")
]
_Namespace: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="a prefix of the schemas' names in the target, so that an Iceberg catalog can have several databases",
    ),
]
_Segments: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="the directory of the segments; by default _segments in the target"),
]
_Seconds: TypeAlias = Annotated[
    float, typer.Option(help="a change is in its history after about this many seconds")
]
_MergeSeconds: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="a change is in its current table after about this many seconds; by default as --seconds",
    ),
]
_Merge: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TABLE=]on_write|on_read",
        help="rewrite the files with updated and deleted rows (on_write, the default), or mark these rows as "
        "deleted (on_read); for all tables, or for one; may be repeated",
    ),
]
_KeepPoints: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="how many of the newest points stay readable")
]
_Keep: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="also keep what is needed to read the tables as of any time in this period, such as 12h or 7d",
    ),
]
_InStep: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--in-step",
        help="change the current tables only together; a table that is stopped stops the mirror",
    ),
]
_TrustWidening: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-widening",
        help="a column that became wider needs no load: you state that no values were changed (no USING)",
    ),
]
_RenameColumns: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--rename-columns",
        help="rename a column in place when it is renamed on the server; by default, a new column gets its values, and "
        "the old one stays. Not for delta",
    ),
]
_RemoveSegments: TypeAlias = Annotated[
    bool, typer.Option("--remove-segments", help="remove segments when all tables have their changes")
]
_BacklogBytes: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="pause the capture while about this many bytes of segments wait for the mirror; 0 for no limit",
    ),
]
_Repair: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="first, if the slot is lost, create it again, compare the tables with the server, and repair what "
        "differs",
    ),
]
_AnotherSource: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--another-source",
        help="for --repair: the tables get the rows of another server, or of a database with another name, instead "
        "of the previous one",
    ),
]
_Reload: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="TABLE", help="first load this table again from the server; may be repeated"),
]
_Forget: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE",
        help="first forget a table that is not published any more; its files stay; may be repeated",
    ),
]
_Until: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="LSN|now", help="stop when all tables have everything that committed up to this position"
    ),
]


def mirror(
    context: typer.Context,
    dsn: DSN = "",
    password_command: PasswordCommand = "",
    slot: SlotName = None,
    publication: Publications = None,
    adopt: _Adopt = False,
    failover: Failover = False,
    threads: _Threads = 1,
    snapshot: _Snapshot = "shared",
    target: _Target = None,
    tables: _Tables = None,
    exclude: _Exclude = None,
    format: _Format = "delta",
    iceberg_catalog: IcebergCatalog = None,
    namespace: _Namespace = "",
    segments: _Segments = None,
    seconds: _Seconds = 10.0,
    merge_seconds: _MergeSeconds = None,
    merge: _Merge = None,
    keep_points: _KeepPoints = 100,
    keep: _Keep = None,
    numeric: Numeric = "string",
    in_step: _InStep = False,
    trust_widening: _TrustWidening = False,
    rename_columns: _RenameColumns = False,
    remove_segments: _RemoveSegments = False,
    backlog_bytes: _BacklogBytes = 4 << 30,
    repair: _Repair = False,
    another_source: _AnotherSource = False,
    reload: _Reload = None,
    forget: _Forget = None,
    until: _Until = None,
    retry_seconds: RetrySeconds = RETRY_SECONDS,
    metrics_file: MetricsFile = None,
    metrics_address: MetricsAddress = None,
    quiet: Quiet = False,
) -> None:
    """Keep tables of a lake equal to the published tables of a server, until SIGTERM or Ctrl-C.

    The mirror loads the tables once, then follows their changes. If it is killed, run it again: it goes on where it
    was. With --dsn -, it reads the connection string from the first line of the standard input, so that no other user
    sees a password.

    Example: pgoutput-fast mirror --dsn dbname=shop --slot to_lake --publication shop --target lake/
    """
    if target == "":
        raise UsageError("--target is empty: name a directory or a URI")
    expect_given({"--slot": slot, "--publication": publication, "--target": target})
    if another_source and not repair:
        raise UsageError("--another-source is for --repair")
    end = position_or_now(until)
    prepare_process(context)
    import pgoutput_fast.mirror  # noqa: F401  # slow, and until then Ctrl-C ends the process at once
    from pgoutput_fast.postgres.interruptible import stopping

    stop = stop_on_signals(quiet=quiet)
    with _service(context.params) as service:
        if repair:
            service.repair(stop=stop, another_source=another_source)
        for table in reload or ():
            service.reload(table, stop=stop)
        for table in forget or ():
            service.forget(table)
        service.run(until_lsn=end, stop=stop)
        with stopping(stop):  # then it does not wait for the server's position
            _expect_finished(service, until, stopped=stop.is_set(), quiet=quiet)


def _service(given: Mapping[str, Any]) -> Mirror:
    """Returns the mirror described by the options of the command.

    Raises:
        UsageError: for an option with a wrong value.
    """
    from pgoutput_fast.capture import Retention
    from pgoutput_fast.mirror import Mirror
    from pgoutput_fast.schema.options import Options

    same = (
        *("adopt", "failover", "format", "in_step", "keep_points", "merge_seconds", "metrics_address"),
        *("metrics_file", "namespace", "rename_columns"),
        *("retry_seconds", "seconds", "segments", "snapshot", "threads", "trust_widening"),
    )
    try:
        return Mirror(
            _read_dsn(given["dsn"]) if given["dsn"] == "-" else given["dsn"],
            given["slot"],
            given["publication"],
            given["target"],
            retention=Retention(consumed=True) if given["remove_segments"] else None,
            backlog_bytes=given["backlog_bytes"] or None,
            iceberg_catalog=catalog_properties(given["iceberg_catalog"]),
            merge=_merges(given["merge"]),
            keep_seconds=None if given["keep"] is None else seconds_in("--keep", given["keep"]),
            tables=given["tables"] or None,
            exclude=given["exclude"] or (),
            options=Options(on_error="quarantine", numeric=numeric_type(given["numeric"])),
            **{name: given[name] for name in same},
        )
    except ValueError as problem:
        raise UsageError(str(problem)) from problem


def _merges(texts: list[str] | None) -> Any:
    """The argument `merge` of `Mirror`."""
    if not texts:
        return "on_write"
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    pairs = [text.rpartition("=") for text in texts]  # the name of a table may have the sign
    for text, (table, _, _) in zip(texts, pairs, strict=True):
        if not table:
            raise UsageError(
                f"--merge: {text} is not TABLE=on_read or TABLE=on_write, as for more than one table"
            )
    return {table: merge for table, _, merge in pairs}


def _read_dsn(given: str) -> str:
    """The connection string from the standard input. An empty one would stand for libpq's defaults."""
    from pgoutput_fast.postgres.passwords import Dsn

    dsn = sys.stdin.readline().strip()
    if not dsn:
        raise UsageError("--dsn - reads the connection string from the standard input, which is empty")
    return given.with_text(dsn) if isinstance(given, Dsn) else dsn


def _expect_finished(mirror: Mirror, until: str | None, *, stopped: bool, quiet: bool) -> None:
    """Logs the progress of the tables, and checks that a run with --until has completed.

    Raises:
        MirrorError: if it was stopped before that, or if a table or its history is stopped.
    """
    from pgoutput_fast.mirror import MirrorError

    if (left := mirror.unfinished) is not None:
        before = "" if until is None else f" before all tables had what committed up to {until}"
        raise MirrorError(f"it was stopped{before}. {left[0].upper()}{left[1:]}")
    states = mirror.status()
    for state in states if not quiet else ():
        _log.info("%s", state)
    if until is None:
        return
    if stopped:
        raise MirrorError(
            f"it was stopped before all tables had what committed up to {until}. Run it again: it goes on where it was"
        )
    if lacking := _lacking(states):
        raise MirrorError(
            f"{some_of(lacking)} did not take what committed up to {until}: pgoutput-fast status says why"
        )


def _lacking(states: Sequence[TableStatus]) -> list[str]:
    return [
        state.table for state in states if state.state not in ("follow", "unpublished") or state.history_error
    ]
