"""How a peer in Python is spoken to. Needs the standard library only, as peers run in environments of their own.

A peer says `{}` when it has read its input, and answers each line of its standard input with a line of JSON: `round`
with what decoding everything once took, `dump PATH` with `{}` when what it makes of its input is in that directory.
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
    """What the peer was started with."""
    return json.loads(sys.argv[1])


def messages(path: str) -> list[bytes]:
    """The messages of a file, in which each comes behind its length."""
    data, at, found = Path(path).read_bytes(), 0, []
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : end])
        at = end
    return found


def serve(decode: Callable[[], Any], count: Callable[[Any], int], dump: Callable[[str], None]) -> None:
    """Answers commands until standard input ends.

    Args:
        decode: what is timed.
        count: how many rows are in what it returned; not timed.
        dump: writes what it makes in the form that the catalogue says.
    """
    # What a peer prints is not an answer.
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
    """A line of JSON for each (table, values)."""
    with open(path, "w", encoding="utf-8") as file:
        for table, values in rows:
            file.write(json.dumps([table, values], default=str) + "\n")
