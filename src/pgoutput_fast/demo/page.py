"""The demo's page: one HTML file without scripts, which needs neither a server nor a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pgoutput_fast.base.display import escaped
from pgoutput_fast.demo.chart import chart
from pgoutput_fast.demo.report import Report, TableResult

__all__ = ["page_of"]

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2330; --soft: #5c6675; --line: #dde2ea; --card: #f5f7fa;
  --server: #8a94a6; --mirror: #1668c7; --event: #b4500b; --good: #14793f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #14181f; --text: #e4e8ee; --soft: #97a1b0; --line: #2d3541;
  --card: #1c222c; --server: #8a94a6; --mirror: #5aa9ff; --event: #f0a35e; --good: #5cc98a; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 860px; padding: 32px 24px 64px; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 19px; margin: 40px 0 8px; }
p { margin: 8px 0; }
.soft, figcaption { color: var(--soft); font-size: 14px; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; margin: 24px 0;
  padding: 0; }
.cards li { list-style: none; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 14px 16px; }
.cards b { display: block; font-size: 24px; line-height: 1.2; }
.cards span { color: var(--soft); font-size: 14px; }
figure { margin: 16px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; font-size: 13px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
svg .server { stroke: var(--server); } svg .mirror { stroke: var(--mirror); }
svg line.grid { stroke: var(--line); } svg line.event { stroke: var(--event); stroke-dasharray: 3 4; }
svg circle.event { fill: var(--event); } svg text { fill: var(--soft); }
svg text.left { text-anchor: end; } svg text.below { text-anchor: middle; }
svg text.number { text-anchor: middle; fill: var(--back); font-weight: 700; }
.key { display: inline-block; width: 22px; border-top: 3px solid; vertical-align: middle; margin: 0 6px 0 14px; }
.key.server { border-color: var(--server); margin-left: 0; } .key.mirror { border-color: var(--mirror); }
ol.events { margin: 8px 0; padding-left: 24px; columns: 17em 2; font-size: 14px; }
ol.events li::marker { color: var(--event); font-weight: 700; }
"""


def page_of(report: Report, commands: Sequence[tuple[str, str]]) -> str:
    """The page.

    Args:
        report: what happened.
        commands: (what, command for a shell) to look at the tables that stay; none if they do not.
    """
    body = "\n".join(
        [
            "<h1>A shop on PostgreSQL, copied twice while it worked</h1>",
            f'<p class="soft">{_text(report.server)}, {report.orders:,} orders, {report.seconds:.0f} seconds, by '
            "<code>pgoutput-fast demo</code></p>",
            _verdict(report),
            _cards(report),
            _mirror(report),
            _tables(report),
            _sample(report),
            _answer(report),
            _commands(commands),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>pgoutput_fast: the demo</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _verdict(report: Report) -> str:
    if report.failures:
        lines = "".join(f"<li>{_text(each)}</li>" for each in report.failures)
        return f'<p class="bad">Not everything is equal:</p><ul>{lines}</ul>'
    copies = sum(len(each.equal) for each in report.tables.values())
    return f'<p class="good">All rows of all {copies} copies of tables are equal to the server\'s.</p>'


def _cards(report: Report) -> str:
    rate = report.messages / report.decode_seconds if report.decode_seconds else 0
    spark = report.messages / report.spark_seconds if report.spark_seconds else 0
    cards = [
        (
            f"{report.messages:,}",
            f"messages captured, {report.nbytes / 1e6:.1f} MB in {report.segments} segments",
        ),
        (f"{rate / 1e6:.1f} M/s", "messages decoded into Arrow, on one core"),
        (
            f"{spark / 1e3:,.0f} k/s",
            f"messages made {report.spark_rows:,} rows of Delta tables, by Spark on two cores",
        ),
        (
            f"{sum(each.mirrored for each in report.tables.values()):,}",
            "rows in the mirror, which was killed once",
        ),
    ]
    return f'<ul class="cards">{"".join(f"<li><b>{number}</b><span>{text}</span></li>" for number, text in cards)}</ul>'


def _mirror(report: Report) -> str:
    drawn = chart(report.progress, report.events)
    if not drawn:
        return ""
    events = "".join(f"<li>{_text(text)} ({seconds:.1f} s)</li>" for seconds, text in report.events)
    return (
        "<h2>The mirror is killed, and goes on</h2>"
        '<p><span class="key server"></span>what the server wrote (WAL)'
        '<span class="key mirror"></span>what the mirror has in all its tables</p>'
        f'<figure>{drawn}<ol class="events">{events}</ol><figcaption>The mirror commits about once a second. Its '
        "line begins when all tables are loaded.</figcaption></figure>"
    )


def _tables(report: Report) -> str:
    head = ("table", "loaded", "changes", "rebuilt", "mirrored", "version", "Spark's", "the mirror's")
    rows = [
        (
            name,
            *(
                f"{number:,}"
                for number in (each.loaded, each.changes, each.rows, each.mirrored, each.version)
            ),
            _equal(each, "Spark"),
            _equal(each, "mirror"),
        )
        for name, each in report.tables.items()
    ]
    return (
        "<h2>Every row is compared with the server</h2>"
        '<p class="soft">From Spark: the loaded rows, with all changes applied in order. The shop goes on for the '
        "mirror, so that it has more rows.</p>" + _table(head, rows, range(1, 6))
    )


def _equal(result: TableResult, who: str) -> str:
    return {True: "equal", False: "different", None: "not compared"}[result.equal.get(who)]


def _sample(report: Report) -> str:
    columns, rows = report.sample
    if not rows:
        return ""
    return (
        "<h2>What changes look like</h2>"
        '<p class="soft">One order in <code>public.orders</code>, as Spark wrote its changes. An update has its new '
        "row, and also the old one if the key changed.</p>" + _table(columns, rows)
    )


def _answer(report: Report) -> str:
    columns, rows = report.answer
    if not rows:
        return ""
    right = range(1, len(columns))
    return (
        "<h2>DuckDB asks the mirror</h2>"
        f"<pre>{_text(report.query, lines=True)}</pre>"
        + _table(
            columns,
            [[f"{each:,}" if not isinstance(each, str) else each for each in row] for row in rows],
            right,
        )
        + '<p class="soft">The server was asked the same.</p>'
    )


def _commands(commands: Sequence[tuple[str, str]]) -> str:
    if not commands:
        return (
            "<h2>Look at the tables yourself</h2><p><code>pgoutput-fast demo --keep</code> leaves the tables of the "
            "mirror, and says how to read them with DuckDB, polars and Spark.</p>"
        )
    shown = "".join(f"<p>{_text(what)}</p><pre>{_text(command)}</pre>" for what, command in commands)
    return f"<h2>Look at the tables yourself</h2>{shown}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    numbers = set(right)

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{_class(k in numbers, text)}>{_text(text)}</{tag}>" for k, text in enumerate(texts)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{lines}</tbody></table></div>'


def _class(is_number: bool, text: str) -> str:
    name = "n" if is_number else {"equal": "good", "different": "bad"}.get(text)
    return "" if name is None else f' class="{name}"'


def _text(text: str, *, lines: bool = False) -> str:
    if lines:
        return "\n".join(map(_text, text.splitlines()))
    return escape(escaped(text))
