"""Measures mirrors that follow updates at random keys of a large table, beside Debezium with delta-rs's MERGE.

    python -m benchmarks.mirror.updates           # some ten minutes; rewrites the figures in README.md

The table is that of TPC-B's accounts. Each system has all rows, and its walsender is halted while balances of random
accounts are updated. Then one system after the other goes on, and the rate is that until the last update is visible in
its tables. At the end, the tables must have the balances of the server.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from psycopg2.extras import execute_values

from benchmarks.mirror.live import Burst, Halted
from benchmarks.mirror.systems import DebeziumSystem, Mirrored, OurSystem, System, Walsender, wait
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.demo.servers import Server, find_installations

__all__ = ["main", "measured"]

MARKERS = "<!-- updates figures -->", "<!-- end of updates figures -->"
ROWS, UPDATES, SHARE, IN_A_TRANSACTION = 10_000_000, 500_000, 0.1, 100
_TABLE = "accounts"
_COLUMNS = {"id": "int64", "bid": "int32", "abalance": "int32", "filler": "string"}
