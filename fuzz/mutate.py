"""Fuzzes the decoder: compares it with the reference decoder on damaged streams that are cut into random calls.

    python fuzz/mutate.py --seconds 60 --seed 1
    python fuzz/mutate.py --replay fuzz/failures/seed-1.txt

The streams are random or captured from servers. Prints the number of mutated messages. If a stream fails, makes it as
small as possible, and saves it with its seed and options in the directory --save.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from cases import Case, captured, make_case, read_fixture  # noqa: E402
from copies import copies_failure  # noqa: E402
from frames import frames_failure  # noqa: E402

from pgoutput_fast._core.rows.planning import use_windows  # noqa: E402
from support.streams import RandomChoices, Stream, check, check_tagged  # noqa: E402

SMALLER_SECONDS = 60


def failure(case: Case, seed: int) -> str | None:
    """Run a case. Returns the problem, or None if there is none."""
    options = case.options | {"threads": 1 + seed % 3, "batch_rows": (2, 7, 16_384)[seed % 5 % 3]}
    before = use_windows((3, 50, 16_384)[seed % 7 % 3])
    try:
        check(case.stream, case.cuts, 1 + seed % 2, **options)
        if seed % 3 == 0 and len(case.stream.payloads) < 1000:
            check_tagged(case.stream, RandomChoices(seed), **options)
    except Exception:
        return traceback.format_exc()
    finally:
        use_windows(before)
    return None


def smaller(case: Case, seed: int) -> Case:
    """A smaller case that still fails. Removes messages, first many at a time."""
    end = time.monotonic() + SMALLER_SECONDS
    size = max(1, len(case.stream.payloads) // 2)
    while size:
        at = 0
        while at < len(case.stream.payloads) and time.monotonic() < end:
            attempt = Case(without(case.stream, at, at + size), case.cuts, case.options)
            if failure(attempt, seed):
                case = attempt
            else:
                at += size
        size //= 2
    return case


def without(stream: Stream, start: int, end: int) -> Stream:
    payloads = stream.payloads[:start] + stream.payloads[end:]
    gone = min(end, len(stream.payloads)) - start
    sessions = {s if s < start else max(start, s - gone) for s in stream.sessions}
    return Stream(
        payloads, stream.lsns[:start] + stream.lsns[end:], {s for s in sessions if s < len(payloads)}
    )


def save(directory: Path, case: Case, seed: int, trace: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed-{seed}.txt"
    about = {
        "seed": seed,
        "options": case.options,
        "cuts": case.cuts,
        "sessions": sorted(case.stream.sessions),
    }
    comments = "".join(f"# {line}\n" for line in trace.splitlines())
    lines = zip(case.stream.lsns, case.stream.payloads, strict=True)
    path.write_text(
        f"#! {json.dumps(about)}\n{comments}" + "".join(f"{lsn:x} {data.hex()}\n" for lsn, data in lines)
    )
    return path


def replay(path: Path) -> int:
    about: dict[str, Any] = json.loads(path.read_text().partition("\n")[0].removeprefix("#!"))
    source = read_fixture(path)
    stream = Stream([data for _, data in source], [lsn for lsn, _ in source], set(about["sessions"]))
    problem = failure(Case(stream, about["cuts"], about["options"]), about["seed"])
    print(problem or "the stream does not fail any more")
    return 1 if problem else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first case; default: random")
    parser.add_argument(
        "--messages", type=int, default=None, help="stop also after this many mutated messages"
    )
    parser.add_argument("--failures", type=int, default=5, help="stop after this many failures")
    parser.add_argument(
        "--save", type=Path, default=HERE / "failures", help="directory for streams that fail"
    )
    parser.add_argument("--replay", type=Path, default=None, help="run a saved stream again")
    arguments = parser.parse_args()
    if arguments.replay:
        return replay(arguments.replay)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**9)
    print(f"seeds from {seed} on", flush=True)
    sources = captured()
    begin = said = time.monotonic()
    cases = failures = mutated = frames = copies = 0
    while (
        time.monotonic() < begin + arguments.seconds
        and failures < arguments.failures
        and (arguments.messages is None or mutated < arguments.messages)
    ):
        case = make_case(seed, sources)
        if failure(case, seed):
            failures += 1
            least = smaller(case, seed)
            trace = failure(least, seed) or "the problem appears only with more messages"
            path = save(arguments.save, least, seed, trace)
            print(
                f"\nseed {seed}: {case.options}; {len(least.stream.payloads)} messages\n{trace}saved as {path}"
            )
        tried, trace = frames_failure(random.Random(seed), sources)
        if trace:
            failures += 1
            print(f"\nseed {seed}, frames:\n{trace}")
        streams, trace = copies_failure(random.Random(seed))
        if trace:
            failures += 1
            print(f"\nseed {seed}, copies:\n{trace}")
        copies += streams
        cases, mutated, frames, seed = cases + 1, mutated + case.mutated, frames + tried, seed + 1
        if time.monotonic() > said + 60:
            said = time.monotonic()
            print(
                f"{mutated} mutated messages, {frames} frames, {copies} copies, {failures} failures so far",
                flush=True,
            )
    took = time.monotonic() - begin
    print(
        f"{cases} cases with {mutated} mutated messages, {frames} mutated frames and {copies} mutated copies in "
        f"{took:.0f} s, ",
        end="",
    )
    print(f"{failures} failures; the next seed is {seed}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
