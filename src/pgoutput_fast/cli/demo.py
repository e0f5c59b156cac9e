"""`pgoutput-fast demo`: the main job on embedded defaults."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    orders: Annotated[int, typer.Option(metavar="N", help="orders that the shop takes")] = 20_000,
    server: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION",
            help="major version of PostgreSQL; the system's or the newest if it is not given",
        ),
    ] = None,
) -> None:
    """Show the whole way on this machine, from a server to a lake.

    A real PostgreSQL runs; its tables and then its changes are captured while it works; Spark writes Delta tables,
    which are compared with the server. Then a mirror of the tables is killed and goes on, and DuckDB queries it. The
    exit status is 0 only if every table equals the server's.

    Example: pgoutput-fast demo --orders 2000
    """
    from pgoutput_fast.demo.run import run_demo

    raise typer.Exit(run_demo(orders, server))
