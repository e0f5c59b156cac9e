"""Writes docs/peers.md and docs/peers.svg from the figures. Figures from another machine are in their own section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpora import FULL_MESSAGES
from benchmarks.peers.catalogue import MEMCPY, OURS, Peer
from benchmarks.peers.chart import Bar, chart
from benchmarks.peers.figures import Figures, Outcome
from benchmarks.report import Section, machine, rewrite

__all__ = ["QUOTED", "drawn", "figures", "write"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"
_REASON = 120
QUOTED_ON = "2026-11-20"


@dataclass(frozen=True)
class Quoted:
    """Another project's decoder, measured once on another day, because this suite cannot compile it.

    Attributes:
        name, makes: as in `Peer`.
        speeds: {corpus: (million messages per CPU second, MB/s)}, or only the first number.
    """

    name: str
    makes: str
    speeds: Mapping[str, tuple[float, float | None]]


# MB/s of memcpy on that machine at that time. Only ratios to it can be compared with other figures.
QUOTED_MEMCPY = {"wide text": 7200.0, "wide binary": 7200.0, "pgbench": 11_900.0}
# Sizes in MB of a real server's stream with the same tables.
QUOTED_MB = {"wide text": 162.0, "wide binary": 140.0, "pgbench": 30.0}
QUOTED_MESSAGES = FULL_MESSAGES
QUOTED = (
    Quoted(
        "Rust postgres-replication, parse only",
        "slices of bytes, no values",
        {"wide text": (1.91, 837), "wide binary": (1.72, 648), "pgbench": (8.9, 447)},
    ),
    Quoted(
        "Go pglogrepl, parse only",
        "structs of byte slices",
        {"wide text": (0.881, 386), "wide binary": (0.955, None), "pgbench": (3.9, None)},
    ),
    Quoted(
        "Go pglogrepl, typed",
        "`any` values",
        {"wide text": (0.175, 77), "wide binary": (0.243, None), "pgbench": (1.85, None)},
    ),
)


def figures(
    peers: Sequence[Peer],
    found: Mapping[str, Mapping[str, Outcome]],
    scale: float,
    rounds: int,
    programs: Sequence[str] = (),
) -> str:
    """The text between the page's markers. `programs` names other programs that the figures depend on."""
    heading = (
        f"{'; '.join([machine(), *programs])}; scale {scale:g}, median of {rounds} interleaved rounds. "
        "Each row is a process of its own.\nAll times are that process's, all its threads together; `MB` is 10^6 bytes."
    )
    sections = [section(name, found[name], peers) for name in found]
    return "\n\n".join([heading, *(str(each).rstrip() for each in (*sections, who(peers), quoted()))]) + "\n"


def section(name: str, outcomes: Mapping[str, Outcome], peers: Sequence[Peer]) -> Section:
    """The table of one corpus."""
    head = [
        "",
        "CPU s",
        "wall s",
        "MB/s",
        "M messages/s",
        "of memcpy",
        f"CPU of {OURS}'s",
        "peak MB",
        "before MB",
    ]
    by_name = {peer.name: peer for peer in peers}
    memcpy, ours = outcomes[MEMCPY], outcomes[OURS]
    assert isinstance(memcpy, Figures)
    assert isinstance(ours, Figures)
    table = Section(f"{name}: {memcpy.messages:,} messages, {memcpy.nbytes / 1e6:.1f} MB", head)
    for each, outcome in outcomes.items():
        peer = by_name[each]
        if isinstance(outcome, str):
            table.rows.append([f"{each}: {outcome[:_REASON]}", *[""] * (len(head) - 1)])
            continue
        seconds = outcome.cpu.seconds
        label = each + (f" ({peer.share:.0%} of it, scaled up)" if peer.share != 1 else "")
        table.rows.append(
            [
                label,
                f"{seconds:.4f}" if seconds < 1 else f"{seconds:.2f}",
                f"{outcome.wall.seconds:.4f}" if outcome.wall.seconds < 1 else f"{outcome.wall.seconds:.2f}",
                _number(outcome.nbytes / seconds / 1e6),
                _number(outcome.messages / seconds / 1e6),
                _number(outcome.cpu.speed_beside(memcpy.cpu)),
                f"{_number(ours.cpu.speed_beside(outcome.cpu))}",
                f"{outcome.resident_peak / 1e6:,.0f}",
                f"{outcome.resident_before / 1e6:,.0f}",
            ]
        )
    return table


def who(peers: Sequence[Peer]) -> str:
    """The description of the rows."""
    lines = ["### What the rows are", "", "| | reads | makes | |", "| --- | --- | --- | --- |"]
    lines += [f"| {p.name} | {p.reads or 'the messages'} | {p.makes} | {p.note} |" for p in peers]
    return "\n".join(lines)


def quoted() -> str:
    """The section on figures that were measured once."""
    table = Section(
        f"Measured once, on {QUOTED_ON}, not by this command",
        ["", *(f"{name}: {what}" for name in FULL_MESSAGES for what in ("M messages/s", "of memcpy"))],
    )
    for each in QUOTED:
        row = [f"{each.name}: {each.makes}"]
        for name in FULL_MESSAGES:
            row += [_number(each.speeds[name][0]), _number(quoted_ratio(each, name))]
        table.rows.append(row)
    return str(table)


def quoted_ratio(each: Quoted, name: str) -> float:
    """Its speed relative to memcpy on its own machine at that time."""
    messages, megabytes = each.speeds[name]
    if megabytes is None:
        megabytes = messages * 1e6 * QUOTED_MB[name] / QUOTED_MESSAGES[name]
    return megabytes / QUOTED_MEMCPY[name]


def drawn(found: Mapping[str, Mapping[str, Outcome]], quoted: Sequence[Quoted] = QUOTED) -> str:
    """The chart of speeds relative to memcpy, because these can be compared between machines.

    Args:
        found: the outcomes.
        quoted: the figures that were measured once.
    """
    panels: dict[str, list[Bar]] = {}
    for name, outcomes in found.items():
        memcpy = outcomes[MEMCPY]
        assert isinstance(memcpy, Figures)
        bars, without = [], []
        for each, outcome in outcomes.items():
            if isinstance(outcome, str):
                without.append(Bar(each, "peer", None, outcome.partition(":")[0]))
                continue
            kind = "ours" if each.startswith(OURS) else "reference" if each.startswith(MEMCPY) else "peer"
            ratio = outcome.cpu.speed_beside(memcpy.cpu)
            speed = _number(outcome.messages / outcome.cpu.seconds / 1e6)
            bars.append(Bar(each, kind, ratio, f"{_number(ratio)} ({speed} M/s)"))
        for other in quoted:
            ratio = quoted_ratio(other, name)
            speed = _number(other.speeds[name][0])
            bars.append(Bar(other.name, "quoted", ratio, f"{_number(ratio)} ({speed} M/s)"))
        bars.sort(key=lambda bar: -(bar.value or 0))
        panels[name] = bars + without
    return chart(
        panels,
        "Speed beside memcpy of the same messages, by CPU time; in brackets million messages or rows per CPU second.",
        {"ours": OURS, "reference": "memcpy", "peer": "peers, same run"}
        | ({"quoted": f"measured once, {QUOTED_ON}, not in this run"} if quoted else {}),
    )


def write(text: str, found: Mapping[str, Mapping[str, Outcome]]) -> None:
    """Rewrites the page's figures and the charts. That of README.md has one corpus."""
    rewrite(DOCS / "peers.md", text, BEGIN, END)
    (DOCS / "peers.svg").write_text(drawn(found), encoding="utf-8")
    (DOCS / "decoders.svg").write_text(drawn(dict(list(found.items())[:1]), ()), encoding="utf-8")


def _number(value: float) -> str:
    """The number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    digits = 2
    while value and digits < 6 and value < 10.0 ** (2 - digits):
        digits += 1
    return f"{value:.{digits}f}"
