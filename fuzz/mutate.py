"""Fuzzes the decoder against the reference decoder: random streams, damaged ones, cut into calls in any way.

    python fuzz/mutate.py --seconds 60 --seed 1

Prints the seed of each failure, the options, and the smallest stream it can find that still fails.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from streams import RandomChoices, Stream, check, check_tagged, damage, make_stream


def case(seed: int) -> tuple[Stream, list[int], dict[str, Any]]:
    """Everything about one case follows from its seed."""
    choices = RandomChoices(seed)
    stream = make_stream(choices, 1 + choices.below(14), malformed=choices.below(3) == 0)
    if choices.below(3):
        stream = damage(choices, stream, 1 + choices.below(4))
    cuts = sorted({choices.below(len(stream.payloads) + 1) for _ in range(choices.below(6))})
    options = {
        "transactions": ("as_sent", "committed")[choices.below(2)],
        "on_error": ("quarantine", "quarantine", "raise")[choices.below(3)],
        "unrepresentable": ("null", "null", "null", "raise")[choices.below(4)],
    }
    return stream, cuts, options


def failure(stream: Stream, cuts: list[int], options: dict[str, Any], seed: int) -> str | None:
    try:
        check(stream, cuts, 1 + seed % 2, **options)
        if seed % 3 == 0:
            check_tagged(stream, RandomChoices(seed), **options)
    except Exception:
        return traceback.format_exc()
    return None


def smaller(stream: Stream, cuts: list[int], options: dict[str, Any], seed: int) -> Stream:
    """Leaves out messages as long as it still fails."""
    k = len(stream.payloads)
    while k > 0:
        k -= 1
        payloads = stream.payloads[:k] + stream.payloads[k + 1 :]
        lsns = stream.lsns[:k] + stream.lsns[k + 1 :]
        sessions = {s - (s > k) for s in stream.sessions if s - (s > k) < len(payloads)}
        attempt = Stream(payloads, lsns, sessions)
        if failure(attempt, cuts, options, seed):
            stream = attempt
    return stream


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="of the first case; random if not given")
    parser.add_argument("--failures", type=int, default=5, help="stop after this many")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**9)
    print(f"seeds from {seed} on", flush=True)
    end = time.monotonic() + arguments.seconds
    cases = failures = 0
    while time.monotonic() < end and failures < arguments.failures:
        stream, cuts, options = case(seed)
        if failure(stream, cuts, options, seed):
            failures += 1
            least = smaller(stream, cuts, options, seed)
            print(
                f"\nseed {seed}: {options}, calls end at {cuts}\n{least}\n{failure(least, cuts, options, seed)}",
                flush=True,
            )
        cases += 1
        seed += 1
    print(f"{cases} cases, {failures} failures; the next seed is {seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
