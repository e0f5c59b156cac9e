"""Runs the peers and writes docs/peers.md and docs/peers.svg: `python -m benchmarks.peers`.

Every peer has its own process. First, the output of every peer for a small corpus is compared with ours. If one
differs, nothing is timed. Then the peers decode the whole corpora in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import corpora
from benchmarks.peers import equality, page
from benchmarks.peers.catalogue import MEMCPY, OURS, PEERS, Peer, Started
from benchmarks.peers.figures import Figures, Outcome
from benchmarks.peers.inputs import Inputs
from benchmarks.peers.installations import MissingError, programs
from benchmarks.timing import Measured

__all__ = ["PeerError", "Process", "check", "main", "measure", "turn"]

ROOT = Path(__file__).resolve().parents[2]
CHECKED_SCALE = 0.004
ROUNDS = 5
_ANSWER_SECONDS = 120.0
_CALLS = 9
_ENOUGH = 0.5


class PeerError(Exception):
    """A peer's process failed. The error text ends with its last output."""


class Process:
    """The process of a peer that has read one input."""

    def __init__(self, started: Started) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the process runs
        # Servers print times in UTC, and some peers read a time without a zone as local time.
        environment = {**os.environ, "TZ": "UTC", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        # Peers with their own packages must not import packages from our path.
        if started.command[0] != sys.executable:
            environment["PYTHONPATH"] = str(ROOT)
        self._process = subprocess.Popen(
            started.command, cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        try:
            self._answer()
            self.resident_before = self._memory("VmRSS")
            # This resets the peak, so that the next peak is that of decoding.
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def resident_peak(self) -> int:
        """The peak of the resident memory after the peer read its input, in bytes."""
        return self._memory("VmHWM")

    def round(self) -> dict[str, Any]:
        """Decodes everything once. Returns the cost."""
        return self._ask("round")

    def dump(self, directory: Path) -> None:
        """Makes the peer write its output."""
        self._ask(f"dump {directory}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed("ended") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise self._failed("ended" if ready else f"did not answer in {_ANSWER_SECONDS:.0f} s")
        try:
            return json.loads(line)
        except ValueError:
            raise self._failed(f"said {line[:200]!r}") from None

    def _failed(self, what: str) -> PeerError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return PeerError(f"{what}: {said[-2000:]}")

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name}")


def check(peers: Sequence[Peer], inputs: Inputs) -> dict[tuple[str, str], str]:
    """Compares the output of every peer for each of its corpora with ours.

    Returns:
        {(corpus, peer): why there are no figures}: a missing program or a known failure.

    Raises:
        DifferenceError: if a peer's output differs, or if a known failure no longer occurs.
        PeerError: if a peer fails and the failure is not a known one.
    """
    without = {}
    for peer in peers:
        for name in peer.corpora:
            try:
                # The whole corpus: a share of a small corpus would show less.
                started = peer.start(inputs, name, 1.0)
            except MissingError as error:
                without[name, peer.name] = f"missing: {error}"
                continue
            failure = peer.fails.get(name)
            try:
                directory = inputs.scratch()
                with Process(started) as process:
                    process.dump(directory)
                equality.compare(started.form, directory, inputs.corpus(name), inputs)
            except (PeerError, equality.DifferenceError) as error:
                if failure is None or failure.shows not in str(error):
                    raise type(error)(f"{peer.name} on {name}: {error}") from error
                without[name, peer.name] = f"fails: {failure.why}"
            else:
                if failure is not None:
                    raise equality.DifferenceError(f"{peer.name} no longer fails on {name}")
    return without


def turn(process: Process) -> list[dict[str, Any]]:
    """The costs of several calls, or of one call if it is long.

    Other processes ran for seconds before this one, so its memory is no longer in the caches. This affects the shortest
    calls most: a memcpy takes twice as long.
    """
    calls: list[dict[str, Any]] = []
    while len(calls) < _CALLS and sum(call["cpu"] for call in calls) < _ENOUGH:
        calls.append(process.round())
    return calls


def measure(
    peers: Sequence[Peer], inputs: Inputs, rounds: int, without: Mapping[tuple[str, str], str]
) -> dict[str, dict[str, Outcome]]:
    """{corpus: {peer: its outcome}}, from `rounds` interleaved rounds after a warm-up round."""
    found: dict[str, dict[str, Outcome]] = {}
    for name in corpora.FULL_MESSAGES:
        outcomes: dict[str, Outcome] = {}
        with contextlib.ExitStack() as stack:
            running: dict[str, tuple[Peer, Started, Process]] = {}
            for peer in peers:
                if name not in peer.corpora:
                    continue
                if (name, peer.name) in without:
                    outcomes[peer.name] = without[name, peer.name]
                    continue
                started = peer.start(inputs, name, peer.share)
                running[peer.name] = peer, started, stack.enter_context(Process(started))
            rows = {each: inputs.rows(name, peer.share) for each, (peer, _, _) in running.items()}
            cpu: dict[str, list[float]] = {each: [] for each in running}
            wall: dict[str, list[float]] = {each: [] for each in running}
            for number in range(rounds + 1):
                for each, (peer, _, process) in running.items():
                    calls = turn(process)
                    found_rows = {call["rows"] for call in calls}
                    if found_rows != {rows[each]}:
                        raise equality.DifferenceError(
                            f"{each} finds {', '.join(map(str, found_rows))} rows of {rows[each]} in {name}"
                        )
                    if number:
                        cpu[each].append(max(median(call["cpu"] for call in calls), 1e-9) / peer.share)
                        wall[each].append(median(call["wall"] for call in calls) / peer.share)
            for each, (peer, started, process) in running.items():
                outcomes[each] = Figures(
                    Measured(cpu[each]),
                    Measured(wall[each]),
                    started.nbytes,
                    inputs.rows(name, 1) if peer.reads else len(inputs.payloads(name, 1)),
                    process.resident_before,
                    process.resident_peak,
                )
        order = [peer.name for peer in peers]
        found[name] = dict(sorted(outcomes.items(), key=lambda item: order.index(item[0])))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpora's full size")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="interleaved repetitions")
    parser.add_argument("--only", nargs="*", help="run only peers whose names begin with one of these")
    parser.add_argument("--no-docs", action="store_true", help="do not rewrite files in docs/")
    given = parser.parse_args(arguments)
    peers = [
        each
        for each in PEERS
        if each.name in (MEMCPY, OURS) or not given.only or each.name.startswith(tuple(given.only))
    ]
    started = time.monotonic()
    with Inputs(min(CHECKED_SCALE, given.scale)) as small:
        without = check(peers, small)
    for (name, peer), why in without.items():
        print(f"{peer} on {name}: {why}", flush=True)
    missing = [why for why in without.values() if why.startswith("missing")]
    if missing and os.environ.get("CI") == "true":
        raise SystemExit("CI=true, but not every peer is available")
    print(f"checked after {time.monotonic() - started:.0f} s", flush=True)
    with Inputs(given.scale) as inputs:
        found = measure(peers, inputs, given.rounds, without)
        beside = [inputs.server, *programs()]
    text = page.figures(peers, found, given.scale, given.rounds, beside)
    print(text)
    if given.scale == 1 and not given.only and not given.no_docs:
        page.write(text, found)
    print(f"took {time.monotonic() - started:.0f} s")
