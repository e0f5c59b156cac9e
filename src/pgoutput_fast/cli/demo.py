"""`pgoutput-fast demo`: the main job on embedded defaults."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    orders: Annotated[int, typer.Option(metavar="N", help="how many orders the shop takes")] = 20_000,
    server: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION",
            help="major version of PostgreSQL; by default, the system's or the newest installed",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="keep the tables of the mirror, and say how to read them")
    ] = False,
) -> None:
    """Run everything on this machine once, from a server to a lake.

    The tables and changes of a real PostgreSQL are captured while it works, and Spark writes Delta tables, which are
    compared with the server. Then a mirror of the tables is killed and goes on, and DuckDB queries it. At the end, it
    writes an HTML report. The exit status is 0 only if every table equals the server's.

    Example: pgoutput-fast demo --orders 2000

    Example: pgoutput-fast demo --keep
    """
    from pgoutput_fast.demo.run import run_demo

    raise typer.Exit(run_demo(orders, server, keep=keep))
