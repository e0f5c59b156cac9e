"""Instructions that decoding takes, beside those it took when somebody looked last: `python -m benchmarks.guard`.

Instructions are counted by valgrind's callgrind, on corpora of some thousand messages: what a process that decodes one
forty times takes beyond one that does not. Unlike seconds they are the same on a busy machine, to half a percent.
They differ between compilers, and between processors that have the vector loops' instructions and those that do not,
so each is compared with its own. What takes more than guard.json says, by more than the tolerance, is an error;
`--update` writes down what it takes now.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pgoutput_fast as pgo
from benchmarks import corpora
from pgoutput_fast._core.column import use_vectors

__all__ = ["compare", "main"]

FIGURES = Path(__file__).with_name("guard.json")
SCALES = {"wide text": 0.02, "wide binary": 0.02, "pgbench": 0.01}
TIMES = 40
TOLERANCE = 0.03


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if something takes more than it did, 2 if there is nothing to count or to compare with."""
    parser = argparse.ArgumentParser("python -m benchmarks.guard", description=__doc__.split("\n\n")[0])
    parser.add_argument("--update", action="store_true", help="write down what it takes now")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.run is not None:
        _decode(given.run)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: its package has that name everywhere", file=sys.stderr)
        return 2
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    key, counted = machine(), count()
    if given.update:
        FIGURES.write_text(json.dumps({**known, key: counted}, indent=1, sort_keys=True) + "\n")
    elif key not in known:
        print(f"no figures for {key}: there are some for {', '.join(sorted(known))}", file=sys.stderr)
        print(json.dumps(counted, indent=1))
        return 2
    worse = compare(known.get(key, counted), counted)
    print("\n".join(worse or [f"{name}: {figure}" for name, figure in counted.items()]))
    return 1 if worse and not given.update else 0


def compare(known: dict[str, int], counted: dict[str, int]) -> list[str]:
    """What takes more instructions than it is known to take, a line each; names that are not known are passed over."""
    return [
        f"{name}: {counted[name]} instructions a message, {counted[name] / before - 1:+.1%}: it took {before}. "
        "If that is meant, run this with --update"
        for name, before in known.items()
        if name in counted and counted[name] > before * (1 + TOLERANCE)
    ]


def machine() -> str:
    """What figures depend on: Python's compiler, which builds the core, and whether there are vector loops."""
    name = sysconfig.get_config_var("CXX") or "c++"
    said = subprocess.run([*name.split(), "-dumpfullversion"], capture_output=True, text=True, check=True)
    loops = "vectors" if use_vectors(True) else "portable"
    return f"{Path(name.split()[0]).name} {said.stdout.strip()}, {sysconfig.get_platform()}, {loops}"


def count() -> dict[str, int]:
    """Instructions a message, by corpus."""
    messages = {name: len(corpora.corpus(name, SCALES[name]).payloads) for name in SCALES}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        none, *totals = pool.map(_instructions, [None, *messages])
    return {
        name: round((total - none) / messages[name] / TIMES)
        for name, total in zip(messages, totals, strict=True)
    }


def _instructions(name: str | None) -> int:
    """What it takes to start, to decode each corpus once, and one of them some times more."""
    with tempfile.TemporaryDirectory() as directory:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={directory}/out", sys.executable]
        command += ["-m", "benchmarks.guard", "--run", name or ""]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"callgrind failed: {done.stderr[-1000:]}")
    return int(found[1])


def _decode(name: str) -> None:
    for each, scale in SCALES.items():
        payloads = corpora.corpus(each, scale).payloads
        for _ in range(1 + TIMES * (each == name)):
            pgo.decode(payloads)


if __name__ == "__main__":
    sys.exit(main())
