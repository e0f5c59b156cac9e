"""Shared by `capture` and `mirror`: they run until a signal, or up to a position, and log meanwhile."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Annotated, Literal, TypeAlias

import typer

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.stopping import stop_at_once
from pgoutput_fast.protocol.lsn import parse_lsn

__all__ = [
    "RETRY_SECONDS",
    "MetricsAddress",
    "MetricsFile",
    "Quiet",
    "RetrySeconds",
    "name_value_pairs",
    "position_or_now",
    "prepare_process",
    "stop_on_signals",
]

RETRY_SECONDS = 300.0
RetrySeconds: TypeAlias = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="how long to wait for a server or store that cannot be reached"),
]
MetricsFile: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="write the metrics to this file, for Prometheus' node exporter"),
]
MetricsAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="let Prometheus scrape the metrics at this address"),
]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", help="log only warnings and errors")]


def prepare_process(context: typer.Context) -> None:
    """Reduces the memory of a long-running process. `main` determines whether the process has nothing else to do.

    Ctrl-C ends the process at once until `stop_on_signals` is called, after its modules are loaded.
    """
    if context.obj:
        stop_at_once()
        from pgoutput_fast.capture.own_process import leave_out_pandas

        leave_out_pandas()


def stop_on_signals(*, quiet: bool) -> threading.Event:
    """Starts logging, and returns an event that SIGTERM and SIGINT set."""
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s: %(message)s",
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def position_or_now(text: str | None) -> int | Literal["now"] | None:
    """Parses `--until`, before the work begins.

    Raises:
        UsageError: if it is not a position.
    """
    if text is None:
        return None
    if text == "now":
        return "now"
    try:
        return parse_lsn(text)
    except ValueError as problem:
        raise UsageError(f"--until: {problem}; or give 'now'") from None


def name_value_pairs(option: str, texts: list[str] | None, example: str) -> dict[str, str]:
    """The pairs of a repeatable option.

    Raises:
        UsageError: for a text that is not NAME=VALUE.

    >>> name_value_pairs("--iceberg-catalog", ["type=rest", "uri=http://x?a=b"], "type=rest")
    {'type': 'rest', 'uri': 'http://x?a=b'}
    """
    pairs = [text.partition("=") for text in texts or ()]
    for text, (name, sign, _) in zip(texts or (), pairs, strict=True):
        if not name or not sign:
            raise UsageError(f"{option}: {text} is not NAME=VALUE, such as {example}")
    return {name: value for name, _, value in pairs}
