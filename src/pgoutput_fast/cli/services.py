"""Shared by `capture` and `mirror`: they run until a signal, or up to a position, and log meanwhile."""

from __future__ import annotations

import logging
import re
import signal
import threading
from typing import Annotated, Any, Literal, TypeAlias

import typer

from pgoutput_fast.base.arguments import UsageError
from pgoutput_fast.base.stopping import stop_at_once
from pgoutput_fast.protocol.lsn import parse_lsn

__all__ = [
    "RETRY_SECONDS",
    "MetricsAddress",
    "MetricsFile",
    "Numeric",
    "Quiet",
    "RetrySeconds",
    "catalog_properties",
    "name_value_pairs",
    "numeric_type",
    "position_or_now",
    "prepare_process",
    "seconds_in",
    "stop_on_signals",
]

RETRY_SECONDS = 300.0
RetrySeconds: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="how long to wait for a server, store or catalog that cannot be reached"
    ),
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


Numeric: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="string|float64|PRECISION,SCALE",
        help="the type of numeric columns without a precision, such as 38,6 for a decimal",
    ),
]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


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


def catalog_properties(texts: list[str] | None) -> dict[str, str] | None:
    """The properties of `--iceberg-catalog`; None without any.

    Raises:
        UsageError: for a text that is not NAME=VALUE.
    """
    return name_value_pairs("--iceberg-catalog", texts, "type=rest") or None


def seconds_in(option: str, text: str) -> float:
    """The seconds of a duration.

    Raises:
        UsageError: if it is none.

    >>> seconds_in("--keep", "7d"), seconds_in("--keep", "1.5h")
    (604800.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if found is None or not float(found[1]):
        raise UsageError(f"{option}: {text} is not a duration such as 30m, 12h or 7d (s, m, h, d or w)")
    return float(found[1]) * _UNITS[found[2]]


def numeric_type(text: str) -> Any:
    """The option `numeric` of `Options`.

    Raises:
        UsageError: for a text that is none of its values.

    >>> numeric_type("float64"), numeric_type("38,6")
    ('float64', Decimal128Type(decimal128(38, 6)))
    """
    if text in ("string", "float64"):
        return text
    found = re.fullmatch(r"(\d{1,2}),(\d{1,2})", text)
    if found is None or not 0 < int(found[1]) <= 38 or int(found[2]) > int(found[1]):
        raise UsageError(
            f"--numeric: {text} is not string, float64, or a precision of at most 38 and a scale, such as 38,6"
        )
    import pyarrow as pa

    return pa.decimal128(int(found[1]), int(found[2]))


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
