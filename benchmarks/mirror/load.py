"""Measures the first load of TPC-H's tables into Delta tables, beside other tools that pip installs.

    python -m benchmarks.mirror.load              # some five minutes; rewrites the figures in README.md

CPU time and memory are those of all processes of a tool, without the server's. After a load, the tables must have as
many rows as the server's, and the same sums of keys. The tools need a network the first time, to be installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from benchmarks.mirror import loaders
from benchmarks.mirror.processes import ProcessTree
from benchmarks.peers import installations
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.demo.servers import Server, find_installations

__all__ = ["main", "section", "timed", "uri_of"]

MARKERS = "<!-- load figures -->", "<!-- end of load figures -->"
SCALE = 1.0
_MONEY = "decimal(15, 2)"
_TABLES = {
    "region": "r_regionkey int PRIMARY KEY, r_name char(25), r_comment varchar(152)",
    "nation": "n_nationkey int PRIMARY KEY, n_name char(25), n_regionkey int, n_comment varchar(152)",
    "supplier": "s_suppkey int PRIMARY KEY, s_name char(25), s_address varchar(40), s_nationkey int, s_phone char(15), "
    f"s_acctbal {_MONEY}, s_comment varchar(101)",
    "part": "p_partkey int PRIMARY KEY, p_name varchar(55), p_mfgr char(25), p_brand char(10), p_type varchar(25), "
    f"p_size int, p_container char(10), p_retailprice {_MONEY}, p_comment varchar(23)",
    "partsupp": f"ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost {_MONEY}, ps_comment varchar(199), "
    "PRIMARY KEY (ps_partkey, ps_suppkey)",
    "customer": "c_custkey int PRIMARY KEY, c_name varchar(25), c_address varchar(40), c_nationkey int, "
    f"c_phone char(15), c_acctbal {_MONEY}, c_mktsegment char(10), c_comment varchar(117)",
    "orders": f"o_orderkey int8 PRIMARY KEY, o_custkey int, o_orderstatus char(1), o_totalprice {_MONEY}, "
    "o_orderdate date, o_orderpriority char(15), o_clerk char(15), o_shippriority int, o_comment varchar(79)",
    "lineitem": "l_orderkey int8, l_partkey int, l_suppkey int, l_linenumber int, "
    f"l_quantity {_MONEY}, l_extendedprice {_MONEY}, l_discount {_MONEY}, l_tax {_MONEY}, l_returnflag char(1), "
    "l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct char(25), "
    "l_shipmode char(10), l_comment varchar(44), PRIMARY KEY (l_orderkey, l_linenumber)",
}
_TOOLS = {
    "adbc": (("adbc-driver-postgresql", "adbc-driver-manager", "deltalake"), "ADBC, deltalake"),
    "connectorx": (("connectorx", "deltalake"), "ConnectorX, deltalake"),
    "dlt": (
        ("dlt", "deltalake", "sqlalchemy", "psycopg2-binary"),
        "dlt with SQLAlchemy and pyarrow, deltalake",
    ),
}


def uri_of(dsn: str) -> str:
    """The URI of a `Server`."""
    words = dict(word.split("=", 1) for word in dsn.split())
    return f"postgresql://{words['user']}@{words['host']}:{words['port']}/{words['dbname']}?sslmode=disable"


def timed(command: Sequence[str], **environment: str) -> tuple[float, float, int]:
    """Runs a command. Returns (wall seconds, CPU seconds, peak memory in bytes).

    Raises:
        RuntimeError: if it fails.
    """
    began, usage = time.perf_counter(), _children()
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    with ProcessTree(process.pid, 0.1) as tree:
        if process.wait(1800):
            raise RuntimeError(f"{' '.join(command[:4])} ended with status {process.returncode}")
    return time.perf_counter() - began, _children() - usage, tree.peak


def _children() -> float:
    """CPU seconds of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _fill(server: Server, scale: float, directory: Path) -> None:
    """Makes TPC-H's tables.

    Raises:
        MissingError: if their generator cannot be installed.
    """
    program = installations.python("tpchgen-cli").with_name("tpchgen-cli")
    subprocess.run(
        [program, "csv", "-s", str(scale), f"--output-dir={directory}"], check=True, stdout=subprocess.DEVNULL
    )
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        for table, columns in _TABLES.items():
            cursor.execute(f"CREATE TABLE {table} ({columns})")
            with (directory / f"{table}.csv").open() as rows:
                cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)", rows)
            (directory / f"{table}.csv").unlink()
        cursor.execute(f"CREATE PUBLICATION tpch FOR TABLE {', '.join(_TABLES)}")
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    connection.close()


def _counts(server: Server) -> dict[str, tuple[int, int]]:
    """{table: (rows, sum of the first column)} on the server."""
    connection, found = server.connect(), {}
    with connection.cursor() as cursor:
        for table, columns in _TABLES.items():
            cursor.execute(f"SELECT count(*), sum({columns.partition(' ')[0]})::int8 FROM {table}")
            row = cursor.fetchone()
            assert row is not None
            found[table] = int(row[0]), int(row[1])
    connection.close()
    return found


def _check(places: dict[str, Path], expected: dict[str, tuple[int, int]], tool: str) -> None:
    """
    Raises:
        AssertionError: if a table has other rows than the server.
    """
    for table, place in places.items():
        is_delta = DeltaTable.is_deltatable(str(place))
        rows = DeltaTable(place).to_pyarrow_dataset() if is_delta else ds.dataset(place, format="parquet")
        key = _TABLES[table].partition(" ")[0]
        keys = rows.to_table([key])[key]
        assert (len(keys), pc.sum(keys).as_py()) == expected[table], f"{tool}: {table} has other rows"


def _queries() -> list[str]:
    """A query for each table, with numerics as texts: ADBC gives them a type that deltalake cannot store."""
    found = []
    for table, columns in _TABLES.items():
        names = [each.split() for each in columns.partition(", PRIMARY KEY (")[0].split(", ") if " " in each]
        listed = [f"{name[0]}::text" if name[1].startswith("decimal") else name[0] for name in names]
        found.append(f"{table}=SELECT {', '.join(listed)} FROM {table}")
    return found


def section(scale: float) -> Section:
    """Measures all tools.

    Raises:
        MissingError: if a tool cannot be installed.
        AssertionError: if a table has other rows than the server.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-fast-load-") as directory,
        Server(find_installations()[-1], {"max_wal_size": "8GB"}) as server,
    ):
        place = Path(directory)
        _fill(server, scale, place)
        expected = _counts(server)
        rows = sum(count for count, _ in expected.values())
        found, own = {}, [sys.executable, "-m", "pgoutput_fast"]
        words = ["--publication", "tpch", "--target", str(place / "ours")]
        ours = {"PGOUTPUT_FAST_DSN": server.dsn, "PYTHONPATH": os.pathsep.join(sys.path)}
        found["our mirror: two Delta tables each, history and current"] = (
            2,
            timed([*own, "mirror", "--slot", "load", *words, "--until", "now", "--quiet"], **ours),
        )
        _check(
            {each: place / "ours" / "current" / f"public.{each}" for each in _TABLES}, expected, "our mirror"
        )
        words[-1] = str(place / "snapshot")
        found["our snapshot: Parquet files"] = 1, timed([*own, "snapshot", *words], **ours)
        _check({each: place / "snapshot" / f"public.{each}" for each in _TABLES}, expected, "our snapshot")
        for tool, (packages, name) in _TOOLS.items():
            python = installations.python(*packages, pyarrow=True, dependencies=True)
            target = place / tool
            target.mkdir()
            command = [str(python), loaders.__file__, tool, uri_of(server.dsn), str(target), *_queries()]
            found[name] = 1, timed(command, PYTHONPATH="")
            _check(
                {each: target / ("public" if tool == "dlt" else "") / each for each in _TABLES},
                expected,
                name,
            )
    table = Section(
        f"the first load of TPC-H's tables, {rows:,} rows",
        ["", "wall s", "rows/s", "CPU s/million rows", "of one table", "peak MB"],
    )
    for name, (tables, (wall, cpu, peak)) in found.items():
        million = cpu / rows * 1e6
        table.rows.append(
            [
                name,
                f"{wall:.1f}",
                f"{rows / wall:,.0f}",
                f"{million:.2f}",
                f"{million / tables:.2f}",
                f"{peak / 1e6:,.0f}",
            ]
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.load", description=__doc__)
    parser.add_argument("--scale", type=float, default=SCALE, help="scale of TPC-H")
    parser.add_argument("--no-readme", action="store_true", help="do not rewrite README.md")
    given = parser.parse_args(arguments)
    text = f"{machine()}.\n\n{section(given.scale)}"
    print(text)
    if given.scale == SCALE and not given.no_readme:
        rewrite(README, text, *MARKERS)


if __name__ == "__main__":
    main()
