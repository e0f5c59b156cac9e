"""The demo: a shop on a real PostgreSQL is copied while it works, once by a capture and Spark, once by a mirror that is
killed. Both copies are compared with the server.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pgoutput_fast.demo.captured import capture_shop, decode_here, write_tables
from pgoutput_fast.demo.mirrored import mirror_shop
from pgoutput_fast.demo.page import page_of
from pgoutput_fast.demo.report import Report
from pgoutput_fast.demo.servers import Server, find_installations

__all__ = ["run_demo"]

_INTRODUCTION = """\
A shop on a real PostgreSQL is copied while it works, in two ways:
  1. a capture takes its changes, and Spark writes them as Delta tables
  2. a mirror keeps Delta tables up to date, is killed (kill -9), and goes on
Every row of both copies is compared with the server.
It takes about {time} on two free cores, and needs no network. {stays}
"""
# On two cores.
_SECONDS, _SECONDS_PER_ORDER = 25, 0.0012


def run_demo(orders: int, version: int | None = None, *, keep: bool = False) -> int:
    """Runs the demo, and writes a page with the results into the directory of temporary files.

    Args:
        orders: number of orders that the shop takes.
        version: major version of PostgreSQL; None for the system's, or otherwise the newest one installed.
        keep: whether the mirror's tables stay.

    Returns:
        The exit status: 0 only if every table equals the server's.
    """
    console = Console(highlight=False)
    installations = [i for i in find_installations() if version in (None, i.version)]
    if not installations:
        console.print(
            "[red]There is no PostgreSQL server here.[/] Install one: pip install 'pgoutput_fast\\[demo]'"
        )
        return 1
    stays = "The mirror's tables stay." if keep else "Only a page stays (--keep: the tables, too)."
    minutes = round((_SECONDS + orders * _SECONDS_PER_ORDER) / 60) or 1
    time_taken = "a minute" if minutes == 1 else f"{minutes} minutes"
    console.print(_INTRODUCTION.format(time=time_taken, stays=stays), soft_wrap=True)
    directory = Path(tempfile.mkdtemp(prefix="pgoutput-fast-demo-"))
    try:
        report = _run(directory, _preferred(installations), orders, console)
        # Beside the directory, which goes.
        page = (directory if keep else Path(tempfile.mkdtemp(prefix="pgoutput-fast-demo-"))) / "demo.html"
        page.write_text(page_of(report, looks(directory / "lake") if keep else []), encoding="utf-8")
        _say_end(console, report, page, looks(directory / "lake") if keep else [])
        return 1 if report.failures else 0
    finally:
        for each in (directory / "work",) if keep else (directory,):
            shutil.rmtree(each, ignore_errors=True)


def looks(lake: Path) -> list[tuple[str, str]]:
    """(what, command for a shell) to look at the tables of a mirror."""
    sql = "SELECT status, count(*) FROM orders GROUP BY status"
    polars = f"import polars; print(polars.read_delta({str(lake / 'current' / 'public.orders')!r}))"
    spark = (
        "import os; from pgoutput_fast.demo.java import spark_environment; os.environ.update(spark_environment()); "
        "from pyspark.sql import SparkSession; from pgoutput_fast.spark import read_fresh; "
        f"read_fresh({str(lake)!r}, 'public.orders', spark=SparkSession.builder.getOrCreate()).show(5)"
    )
    return [
        ("DuckDB", shlex.join(["pgoutput-fast", "query", str(lake), sql])),
        ("polars", f'python -c "{polars}"'),
        ("Spark", f'python -c "{spark}"'),
    ]


def _preferred(installations: list[Any]) -> Any:
    """Returns a system installation if there is one, otherwise the newest of the others."""
    system = [i for i in installations if i.origin == "system"]
    return (system or sorted(installations, key=lambda i: i.version))[-1]


@contextmanager
def _errors_alone(log: logging.Logger) -> Iterator[None]:
    """Keeps warnings out of the demo's own lines."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _run(directory: Path, installation: Any, orders: int, console: Console) -> Report:
    """Runs the steps. Says a line after each of them."""
    started = time.perf_counter()
    report = Report(orders)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        _errors_alone(logging.getLogger("pgoutput_fast")),
        Server(installation) as server,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        report.server = f"PostgreSQL {server.version}"
        tasks: dict[str, Any] = {}

        def step(text: str, completed: int = 0, total: int | None = None) -> None:
            if text not in tasks:
                tasks[text] = progress.add_task(text)
            progress.update(tasks[text], completed=completed, total=total)

        def say(text: str) -> None:
            for each in tasks.values():
                progress.update(each, visible=False)
            if not report.failures:
                console.print(Text.assemble(("  done  ", "green"), text), soft_wrap=True)

        step("the shop opens")
        work = directory / "work"
        loaded, catalog = capture_shop(server, work / "loaded", work / "segments", report, step)
        decode_here(work / "segments", catalog, report)
        rows = sum(each.loaded for each in report.tables.values())
        say(f"loaded {rows:,} rows of {len(report.tables)} tables, and captured {report.messages:,} messages")
        say(
            f"decoded them on one core, at {report.messages / report.decode_seconds / 1e6:.1f} million a second"
        )
        write_tables(work / "segments", work / "tables", loaded, catalog, server, report, step)
        say(
            f"wrote {report.spark_rows:,} rows of changes in {report.spark_seconds:.1f} s, with Spark on two cores"
        )
        mirror_shop(server, directory / "lake", orders, report, step)
        say(f"mirrored the tables in spite of {report.events[0][1]}; asked DuckDB")
    report.seconds = time.perf_counter() - started
    return report


def _say_end(console: Console, report: Report, page: Path, commands: list[tuple[str, str]]) -> None:
    for failure in report.failures:
        console.print(Text(failure, "red"))
    copies = sum(len(each.equal) for each in report.tables.values())
    if not report.failures:
        console.print(
            Text.assemble(
                ("  yes   ", "bold green"),
                f"all rows of all {copies} copies are equal to the server's ({report.seconds:.0f} s)",
            )
        )
    console.print(Text(f"\nWhat happened, with a chart: {page}"), soft_wrap=True)
    if commands:
        console.print(Text("\nLook at the tables of the mirror, which stay until you remove them:"))
    for what, command in commands:
        console.print(Text(f"\n{what}:\n  {command}"), soft_wrap=True)
