"""Runs all benchmarks and prints the figures: `python -m benchmarks`. It compares all results before it times anything.

On a processor with AVX-512 it runs them again with the loops for AVX2. At full scale this also rewrites the table in
README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks import committed, corpora, threads, yardsticks
from benchmarks.corpora.columns import TYPES, ColumnKind
from benchmarks.corpora.printed_columns import PRINTED_TYPES
from benchmarks.timing import Measured, interleaved
from pgoutput_fast._core.bench import time_convert, time_headers, time_stages
from pgoutput_fast._core.columns.column import convert, use_vectors
from pgoutput_fast.catalog import relations as catalog
from pgoutput_fast.schema.column_types import ColumnType, column_type_of

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

# Names the highest level of the vector loops that the package may use.
_LEVEL = "PGOUTPUT_FAST_VECTORS"

STAGES = ("scan", "tag", "slice", "convert", "assemble")
FILL = "fill"
UNCONVERTED = "nothing converted"
SMALL_CALL_MESSAGES = 10


@dataclass
class Section:
    """A table of the report."""

    title: str
    head: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [self.head, ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])], *self.rows]
        cells = (
            [
                text.rjust(w) if k else text.ljust(w)
                for k, (text, w) in enumerate(zip(line, widths, strict=True))
            ]
            for line in lines
        )
        return f"### {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpora's full size")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved repetitions")
    parser.add_argument("--seed", type=int, default=corpora.SEED)
    parser.add_argument("--no-readme", action="store_true", help="do not rewrite README.md")
    given = parser.parse_args(arguments)
    text = report(given.scale, given.rounds, given.seed)
    if use_vectors() == "avx512" and _LEVEL not in os.environ:
        again = [sys.executable, "-m", "benchmarks", "--no-readme"]
        again += [f"--{name}={getattr(given, name)}" for name in ("scale", "rounds", "seed")]
        environment = {**os.environ, _LEVEL: "avx2"}
        text += (
            "\n"
            + subprocess.run(
                again, env=environment, stdout=subprocess.PIPE, text=True, check=True
            ).stdout.rstrip("\n")
            + "\n"
        )
    print(text)
    if given.scale == 1 and not given.no_readme:
        rewrite(README, text)


def report(scale: float = 1.0, rounds: int = 9, seed: int = corpora.SEED) -> str:
    """All sections as Markdown.

    Raises:
        AssertionError: if outputs that must be equal differ. In this case nothing is timed.
    """
    for name in corpora.FULL_MESSAGES:
        corpora.check(corpora.corpus(name, scale, seed))
    for name, kind in (TYPES | PRINTED_TYPES).items():
        check_convert(name, kind, 1000)
    sections = [decode_section(name, scale, rounds, seed) for name in corpora.FULL_MESSAGES]
    sections += [committed_section(scale, rounds, seed)]
    sections += [Section("threads", threads.HEADER, list(threads.rows(scale, rounds, seed)))]
    sections += [convert_section(max(1000, round(65_536 * scale)), rounds), small_call_section(rounds)]
    for section in sections:
        section.title += f", {os.environ[_LEVEL]}" if _LEVEL in os.environ else ""
    heading = (
        f"{machine()}; vector loops: {use_vectors()}; seed {seed}, scale {scale:g}, median of {rounds} interleaved "
        "rounds.\n"
        "All times are CPU time of one process that uses one thread, but for the section on threads.\n"
    )
    return "\n".join([heading, *map(str, sections)])


# ---- whole corpora, and stages -----------------------------------------------------------------------------


def decode_section(name: str, scale: float, rounds: int, seed: int) -> Section:
    """Decoding one corpus, its stages, and the yardsticks."""
    corpus = corpora.corpus(name, scale, seed)
    options = pgo.Options()
    for relation, batch in time_stages(corpus.payloads, options)[1]:
        truth = corpus.tables[relation.qualified_name]
        assert batch.schema.names[-truth.num_columns :] == truth.column_names
    check_stages(corpus)
    tasks: dict[str, Any] = {
        "memcpy": yardsticks.memcpy(corpus),
        "memcpy to new memory": yardsticks.memcpy_to_new(corpus),
        "decode": lambda: pgo.decode(corpus.payloads),
        "tag()": lambda: pgo.tag(corpus.payloads),
        FILL: yardsticks.fill(pgo.decode(corpus.payloads)),
    }
    csv_size = 0
    if name == "wide text":
        truth, cells = corpus.tables["public.wide"], corpora.wide_cells(scale, seed)
        data = corpora.csv_of(cells)
        csv_size = data.size
        tasks["pyarrow CSV reader"] = yardsticks.csv_reader(data, truth)
        yardsticks.check_csv(tasks["pyarrow CSV reader"](), truth, cells)
        del cells
        # Slow tasks take seconds, so they get only a tenth of the rows.
        tenth = corpus.payloads.slice(0, len(corpus.payloads) // 10).to_pylist()
        schema = truth.schema
        yardsticks.check_python(yardsticks.parse_wide_text(tenth, schema), truth.slice(0, _rows_of(tenth)))
        tasks["plain Python"] = lambda: yardsticks.parse_wide_text(tenth, schema)

    def headers() -> Mapping[str, float]:
        scan, tag, _ = time_headers(corpus.payloads)
        return {"scan alone": scan, "tag alone": tag, "scan + tag alone": scan + tag}

    def stages() -> Mapping[str, float]:
        return dict(time_stages(corpus.payloads, options)[0])

    measured = interleaved(tasks, {"headers": headers, "stages": stages}, rounds)
    if "plain Python" in measured:
        share = len(tenth) / len(corpus.payloads)
        measured["plain Python"] = Measured([seconds / share for seconds in measured["plain Python"].rounds])
    filled = [measured.pop(FILL), *(measured[each] for each in ("scan", "tag", "slice"))]
    measured[UNCONVERTED] = Measured(
        [sum(each) for each in zip(*(part.rounds for part in filled), strict=True)]
    )
    names = [*(each for each in tasks if each != FILL), "scan + tag alone", UNCONVERTED, *STAGES]
    section = Section(
        f"{name}: {len(corpus.payloads):,} messages, {corpus.nbytes / 1e6:.1f} MB, {corpus.cells:,} cells",
        ["", "CPU s", "MB/s", "M messages/s", "ns/cell", "of memcpy", "of memcpy to new", "of decode"],
    )
    for each in names:
        seconds = measured[each].seconds
        label = f"... {each}" if each in STAGES else each
        section.rows.append(
            [
                f"{label} ({csv_size / 1e6:.1f} MB of CSV)" if each == "pyarrow CSV reader" else label,
                f"{seconds:.4f}",
                f"{(csv_size if each == 'pyarrow CSV reader' else corpus.nbytes) / seconds / 1e6:,.0f}",
                f"{len(corpus.payloads) / seconds / 1e6:.2f}",
                f"{seconds / corpus.cells * 1e9:.2f}",
                f"{measured[each].speed_beside(measured['memcpy']):.3f}",
                f"{measured[each].speed_beside(measured['memcpy to new memory']):.3f}",
                f"{measured[each].speed_beside(measured['decode']):.2f}",
            ]
        )
    return section


def _rows_of(messages: Sequence[bytes]) -> int:
    return sum(message[0] == ord("I") for message in messages)


def check_stages(corpus: corpora.Corpus) -> None:
    """Asserts that the separately timed stages give the same result as decoding."""
    out = pgo.decode(corpus.payloads)
    _, staged = time_stages(corpus.payloads, pgo.Options())
    for name in corpus.tables:
        batches = [batch for relation, batch in staged if relation.qualified_name == name]
        assert pa.Table.from_batches(batches).equals(
            pa.Table.from_batches([b.batch for b in out.changes if b.relation.qualified_name == name])
        ), f"{corpus.name}: the stages of {name} differ from decode()"
    assert time_headers(corpus.payloads)[2] == sum(table.num_rows for table in corpus.tables.values())


def committed_section(scale: float, rounds: int, seed: int) -> Section:
    """The committed view compared with the changes as sent."""
    return Section(
        "committed view", ["", "ns/message", "of as sent"], list(committed.rows(scale, rounds, seed))
    )


# ---- convert, type by type ---------------------------------------------------------------------------------


def column_type(kind: ColumnKind) -> ColumnType:
    """The decoder's type for columns of this kind."""
    return column_type_of(catalog.Column("c", kind.oid, kind.typmod), pgo.Options(), kind.types)


def check_convert(name: str, kind: ColumnKind, n: int) -> None:
    """Asserts that cells in both formats convert to their source values."""
    cells = kind.make(np.random.default_rng(corpora.SEED), n)
    for binary, wire in ((False, cells.text), (True, cells.binary)):
        array, issues = convert(column_type(kind), wire.to_pylist(), binary)
        assert not issues, f"cells of {name} were refused"
        assert array.equals(cells.values), f"cells of {name} convert to something else, binary={binary}"


def convert_section(n: int, rounds: int) -> Section:
    """The convert stage on `n` cells of every type, without nulls."""
    section = Section(
        f"convert: ns per cell of {n:,}, warm buffers",
        ["", "bytes/cell text", "ns text", "bytes/cell binary", "ns binary"],
    )
    for name, kind in (TYPES | PRINTED_TYPES).items():
        cells = kind.make(np.random.default_rng(corpora.SEED), n)
        row = [name]
        for binary, wire in ((False, cells.text), (True, cells.binary)):
            seconds = sorted(time_convert(column_type(kind), wire, binary, rounds + 1)[1:])[rounds // 2]
            row += [f"{len(b''.join(wire.to_pylist())) / n:.1f}", f"{seconds / n * 1e9:.2f}"]
        section.rows.append(row)
    return section


# ---- a small call ------------------------------------------------------------------------------------------


def small_call_section(rounds: int, calls: int = 300) -> Section:
    """Microseconds of a call with ten messages. Its cost comes from Python objects, not from bytes."""
    corpus = corpora.corpus("wide text", 0.002)
    messages = corpus.payloads.to_pylist()
    first, later = messages[:SMALL_CALL_MESSAGES], messages[SMALL_CALL_MESSAGES : 2 * SMALL_CALL_MESSAGES]
    assert (
        pgo.decode(first).table("public.wide")["id"].to_pylist()
        == (corpus.tables["public.wide"]["id"].to_pylist()[: _rows_of(first)])
    )
    decoder = pgo.Decoder()
    decoder.decode(first)

    def fresh() -> None:
        for _ in range(calls):
            pgo.decode(first)

    def going_on() -> None:
        for _ in range(calls):
            decoder.decode(later)

    def tables() -> None:
        for _ in range(calls):
            out = decoder.decode(later)
            for each in (out.transactions, out.outcomes, out.truncates, out.messages, out.rejects):
                assert each is not None

    section = Section(f"a call with {SMALL_CALL_MESSAGES} messages", ["", "us/call"])
    labels = {
        "decode(), relation and all": fresh,
        "Decoder.decode() of the next ones": going_on,
        "the same, and all tables beside the changes": tables,
    }
    (change,) = decoder.decode(later).changes
    label = "Arrow alone: to import a batch of as many columns"
    timed = {label: lambda: {label: yardsticks.import_seconds(change.batch, calls)}}
    for each, measured in interleaved(labels, timed, rounds).items():
        section.rows.append([each, f"{measured.seconds / calls * 1e6:.1f}"])
    return section


# ---- the machine, and the README ---------------------------------------------------------------------------


def machine() -> str:
    """A text that describes this machine."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    huge = pages.read_text().split("[")[1].split("]")[0] if pages.exists() else "unknown"
    facts = [
        datetime.now(UTC).strftime("%Y-%m-%d"),
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        f"{platform.system()} {platform.release()}, huge pages: {huge}",
        f"Python {platform.python_version()}, pyarrow {pa.__version__}, numpy {np.__version__}",
    ]
    return "; ".join(facts)


def rewrite(readme: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replaces the text between two markers."""
    before, _, rest = readme.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    readme.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"took {time.monotonic() - started:.0f} s")
