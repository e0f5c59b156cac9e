"""The protocol of a peer in Python. It needs only the standard library, because peers run in their own environments.

A peer writes `{}` after it has read its input. Then it answers every line of its standard input with one line of JSON.
On `round` it decodes everything once and answers with the cost. On `dump PATH` it writes its output into this directory
and answers `{}`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["given", "messages", "serve", "write_rows"]


def given() -> dict[str, Any]:
    """The arguments that the peer was started with."""
    return json.loads(sys.argv[1])


def messages(path: str) -> list[bytes]:
    """The messages of a file. In the file, every message is preceded by its length."""
    data, at, found = Path(path).read_bytes(), 0, []
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : end])
        at = end
    return found


def serve(decode: Callable[[], Any], count: Callable[[Any], int], dump: Callable[[str], None]) -> None:
    """Answers commands until standard input ends.

    Args:
        decode: the timed function.
        count: returns the number of rows in a result of `decode`; not timed.
        dump: writes the output in the form that the catalogue names.
    """
    # Other output of a peer is not an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr
    print("{}", file=answers)
    for line in sys.stdin:
        command, _, argument = line.rstrip("\n").partition(" ")
        if command == "dump":
            dump(argument)
            print("{}", file=answers)
            continue
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        result = decode()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(json.dumps({"cpu": cpu, "wall": wall, "rows": count(result)}), file=answers)
        del result


def write_rows(path: str, rows: Iterator[tuple[str, list[Any]]]) -> None:
    """Writes one line of JSON per (table, values)."""
    with open(path, "w", encoding="utf-8") as file:
        for table, values in rows:
            file.write(json.dumps([table, values], default=str) + "\n")
