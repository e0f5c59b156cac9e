"""The comparison suite compares: on a tiny corpus, with the peers that need nothing to be installed, and with wrong ones."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from benchmarks.peers import equality, inputs, installations, page, run
from benchmarks.peers.catalogue import MEMCPY, OURS, PEERS, Failure, Peer, Started
from benchmarks.peers.chart import Bar, chart
from benchmarks.peers.figures import Figures
from benchmarks.peers.inputs import Inputs
from benchmarks.peers.worker import messages
from benchmarks.timing import Measured

from support.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"
SCALE = 0.002
PLAIN = [p for p in PEERS if p.name.startswith((MEMCPY, OURS, "pyarrow", "plain"))]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inputs]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGOUTPUT_FAST_BENCH_CACHE", str(tmp_path_factory.mktemp("corpora")))
        with Inputs(SCALE) as made:
            yield made


def _figures(cpu: float) -> Figures:
    return Figures(Measured([cpu, cpu]), Measured([cpu, cpu]), 100e6, 1e6, 50_000_000, 60_000_000)


@pytest.mark.exhaustive
def test_peers_agree_and_are_measured(small: Inputs) -> None:
    assert len(PLAIN) == 6
    assert run.check(PLAIN, small) == {}
    found = run.measure(PLAIN, small, 2, {})
    assert [len(outcomes) for outcomes in found.values()] == [6, 4, 4]
    for outcomes in found.values():
        for figures in outcomes.values():
            assert isinstance(figures, Figures)
            assert len(figures.cpu.rounds) == len(figures.wall.rounds) == 2
            assert figures.resident_peak >= figures.resident_before > 10e6
    text = page.figures(PLAIN, found, SCALE, 2)
    assert "wide text: 743 messages" in text
    for peer in PLAIN:
        assert len(re.findall(rf"^\| {peer.name} +\|", text, re.MULTILINE)) == len(peer.corpora) + 1
    assert ElementTree.fromstring(page.drawn(found)).tag == f"{SVG}svg"


def test_a_file_holds_the_messages(small: Inputs) -> None:
    payloads = small.payloads("pgbench", 0.5)
    assert len(payloads) == len(small.payloads("pgbench", 1)) // 2
    assert messages(str(small.messages("pgbench", 0.5))) == payloads.to_pylist()
    # Of each transaction's six messages four are rows; before them are a truncate and what describes tables.
    assert small.rows("pgbench", 1) == 200 * 4


# ---- wrong peers ---------------------------------------------------------------------------------------------


def _peer(program: str, form: str, corpus: str = "wide text", **more: Any) -> Peer:
    """A peer that runs a program with the path of a directory to write to in `path`."""
    lines = ["import sys", "print('{}', flush=True)", "for line in sys.stdin:", "    path = line[5:-1]"]
    source = "\n".join(
        [*lines, *(f"    {line}" for line in program.splitlines()), "    print('{}', flush=True)"]
    )

    def start(inputs: Inputs, name: str, share: float) -> Started:
        return Started([sys.executable, "-c", source], 1, form)

    return Peer("wrong", "nothing", start, (corpus,), **more)


def test_a_peer_that_ends_is_told_with_what_it_said(small: Inputs) -> None:
    with pytest.raises(run.PeerError, match=r"wrong on wide text: ended:(.|\n)*no such thing"):
        run.check([_peer("raise ValueError('no such thing')", "texts")], small)
    with pytest.raises(run.PeerError, match="said 'hello"):
        run.check([_peer("print('hello', flush=True)", "texts")], small)


def test_a_peer_that_does_not_answer_is_ended(small: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_ANSWER_SECONDS", 1.0)
    with pytest.raises(run.PeerError, match="did not answer in 1 s"):
        run.check([_peer("import time; time.sleep(60)", "texts")], small)


def test_known_failures_are_tried(small: Inputs) -> None:
    known = {"wide text": Failure("cannot do it", "no such thing")}
    failing = _peer("raise ValueError('no such thing')", "texts", fails=known)
    assert run.check([failing], small) == {("wide text", "wrong"): "fails: cannot do it"}
    with pytest.raises(run.PeerError, match="another thing"):
        run.check([_peer("raise ValueError('another thing')", "texts", fails=known)], small)
    able = Peer("able", "", PLAIN[0].start, ("wide text",), fails=known)
    with pytest.raises(equality.DifferenceError, match="able no longer fails on wide text"):
        run.check([able], small)


def test_rows_that_get_lost_while_measuring_are_noticed(small: Inputs) -> None:
    answer = """print('{"cpu": 1, "wall": 1, "rows": 7}', flush=True); continue"""
    with pytest.raises(equality.DifferenceError, match="wrong finds 7 rows of 740 in wide text"):
        run.measure([_peer(answer, "texts")], small, 1, {})


@pytest.mark.parametrize(("cpu", "calls"), [(0.001, 9), (0.2, 3), (0.5, 1), (30.0, 1)])
def test_short_calls_are_repeated(cpu: float, calls: int) -> None:
    class Fake:
        def round(self) -> dict[str, float]:
            return {"cpu": cpu}

    process: Any = Fake()
    assert run.turn(process) == [{"cpu": cpu}] * calls


def _texts(small: Inputs, corpus: str) -> list[tuple[str, list[Any]]]:
    """The rows as a peer with strings gives them."""
    rows: list[tuple[str, list[Any]]] = []
    for name, table in equality.decoded(small.corpus(corpus)).items():
        columns = []
        for field, column in zip(table.schema, table.columns, strict=True):
            values = column.to_pylist()
            if pa.types.is_binary(field.type):
                columns.append([value and "\\x" + value.hex() for value in values])
            elif pa.types.is_boolean(field.type):
                columns.append(["t" if value else "f" for value in values])
            else:
                columns.append(column.cast(pa.string()).to_pylist())
        rows += [(name, list(values)) for values in zip(*columns, strict=True)]
    return rows


def _raw(small: Inputs, corpus: str) -> list[tuple[str, list[Any]]]:
    from benchmarks.corpora import wide_cells

    cells = [each.binary.to_pylist() for each in wide_cells(small.scale, small.seed).values()]
    return [("public.wide", [v and v.hex() for v in values]) for values in zip(*cells, strict=True)]


def _node(small: Inputs, corpus: str) -> list[tuple[str, list[Any]]]:
    """Times end at milliseconds."""
    changed = small.corpus(corpus).tables["public.wide"].column_names.index("changed")
    rows = _texts(small, corpus)
    for _, values in rows:
        values[changed] = re.sub(r"(\.\d{3})\d+", r"\1", values[changed])
    return rows


def _java(small: Inputs, corpus: str) -> list[tuple[str, list[Any]]]:
    """A class before each value but bytes, which come without a prefix."""
    return [
        (name, [value and (value[2:] if value.startswith("\\x") else f"X {value}") for value in values])
        for name, values in _texts(small, corpus)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "corpus", "made"),
    [
        ("texts", "wide text", _texts),
        ("texts", "pgbench", _texts),
        ("python", "wide text", _texts),
        ("node", "wide text", _node),
        ("java", "wide text", _java),
        ("java", "pgbench", _java),
        ("raw", "wide binary", _raw),
    ],
)
def test_one_wrong_value_is_found(
    small: Inputs, tmp_path: Path, form: str, corpus: str, made: Callable[..., list[tuple[str, list[Any]]]]
) -> None:
    rows = made(small, corpus)

    def compare() -> None:
        (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
        equality.compare(form, tmp_path, small.corpus(corpus), small)

    compare()
    row = rows[len(rows) // 2]
    for column in range(len(row[1])):
        right = row[1][column]
        if right is None or right.isspace():
            wrong = "cafe" if form != "java" else "X cafe"
        elif form == "raw" or column == len(row[1]) - 1:
            wrong = ("00" if right[-2:] != "00" else "11").join((right[:-2], ""))
        else:  # another digit or letter early in the value, behind the name of a Java class
            at = 2 if form == "java" else 0
            at += right[at:].startswith("-")
            other = {"t": "f", "f": "t", "1": "2"}.get(right[at], "1")
            wrong = right[:at] + other + right[at + 1 :]
        row[1][column] = wrong
        with pytest.raises(equality.DifferenceError):
            compare()
        row[1][column] = right
    del rows[-1]
    with pytest.raises(equality.DifferenceError, match="rows of"):
        compare()


def test_a_wrong_table_is_found(small: Inputs, tmp_path: Path) -> None:
    truth = small.corpus("wide text").tables["public.wide"]

    def compare(form: str, table: pa.Table) -> None:
        with pa.ipc.new_file(tmp_path / "public.wide.arrow", table.schema) as writer:
            writer.write_table(table)
        equality.compare(form, tmp_path, small.corpus("wide text"), small)

    shuffled = truth.sort_by("quantity")
    compare("selected", shuffled)
    for form in ("table", "ours"):
        compare(form, truth)
        with pytest.raises(equality.DifferenceError):
            compare(form, shuffled)
    for form in ("table", "ours", "selected"):
        with pytest.raises(equality.DifferenceError, match="another number"):
            compare(form, truth.slice(1))
        for k, name in enumerate(truth.column_names):
            wrong = truth.set_column(k, name, truth[name].take(pa.array([1, *range(1, len(truth))])))
            if not wrong.equals(truth):
                with pytest.raises(equality.DifferenceError, match=rf"public.wide.{name}, row|other columns"):
                    compare(form, wrong)


def test_bytes_are_compared(small: Inputs, tmp_path: Path) -> None:
    data = bytearray(small.corpus("pgbench").bytes.tobytes())
    (tmp_path / "bytes").write_bytes(data)
    equality.compare("bytes", tmp_path, small.corpus("pgbench"), small)
    data[len(data) // 2] ^= 1
    (tmp_path / "bytes").write_bytes(data)
    with pytest.raises(equality.DifferenceError):
        equality.compare("bytes", tmp_path, small.corpus("pgbench"), small)


# ---- what is missing -----------------------------------------------------------------------------------------


def _absent(inputs: Inputs, name: str, share: float) -> Started:
    raise installations.MissingError("nobody has it")


def test_what_is_missing_is_in_the_table(small: Inputs) -> None:
    peers = [Peer("absent", "nothing", _absent, ("pgbench",)), Peer("other", "nothing", _absent)]
    without = run.check(peers, small)
    assert without["pgbench", "absent"] == "missing: nobody has it"
    assert len(without) == 1 + 3
    (outcomes,) = (
        found for name, found in run.measure(peers, small, 1, without).items() if name == "pgbench"
    )
    outcomes = {MEMCPY: _figures(0.01), OURS: _figures(0.05), **outcomes}
    section = page.section("pgbench", outcomes, [*PLAIN, *peers])
    assert section.rows[2] == ["absent: missing: nobody has it", *[""] * 8]
    assert ">missing<" in page.drawn({"pgbench": outcomes})


def test_nothing_may_be_missing_in_ci(
    small: Inputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PEERS", (Peer("absent", "nothing", _absent, ("pgbench",)),))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="not every peer"):
        run.main(["--scale", str(SCALE), "--rounds", "1"])
    assert "absent on pgbench: missing: nobody has it" in capsys.readouterr().out


def test_without_programs_nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGOUTPUT_FAST_PEERS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(installations.MissingError, match="node is not installed"):
        installations.node_modules("pg")
    with pytest.raises(installations.MissingError, match="java is not installed"):
        installations.java_classes(ROOT / "benchmarks" / "peers" / "DebeziumDecoder.java")
    with pytest.raises(installations.MissingError, match="has no wal2json"):
        installations.wal2json(15, tmp_path / "bin")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "wal2json.so").touch()
    assert installations.wal2json(15, tmp_path / "bin") is None


def test_an_installation_is_complete_or_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGOUTPUT_FAST_PEERS_CACHE", str(tmp_path))
    tried = []

    def fail(directory: Path) -> None:
        tried.append(directory)
        (directory / "half").touch()
        raise installations.MissingError("no network")

    for _ in range(2):
        with pytest.raises(installations.MissingError, match="no network"):
            installations._installed("a", fail)
    assert len(tried) == 1
    assert list(tmp_path.iterdir()) == []
    installations._failed.clear()  # as in the next process
    made = [installations._installed("a", lambda directory: (directory / "whole").touch()) for _ in range(2)]
    assert made[0] == made[1]
    assert [path.name for path in made[0].iterdir()] == ["whole"]


@pytest.mark.slow
def test_a_server_has_the_rows(small: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(major: int, bindir: Path) -> None:
        raise installations.MissingError("not asked for")

    monkeypatch.setattr(inputs, "wal2json", none)
    if not inputs.find_installations():
        pytest.skip("no PostgreSQL found")
    with Inputs(SCALE) as own:
        # Of fixed width are 19 bytes of a header, 2 of an end, and in each row at least 2 and 4 for each column.
        assert own.database.copied_bytes > 21 + 740 * (2 + 16 * 4)
        with pytest.raises(installations.MissingError):
            _ = own.json


# ---- the page ------------------------------------------------------------------------------------------------


def test_the_page_is_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "peers.md").write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    found = {"wide text": {MEMCPY: _figures(0.01), OURS: _figures(0.05), "plain Python": _figures(2.5)}}
    text = page.figures(PLAIN, found, 1, 2)
    page.write(text, found)
    lines = (tmp_path / "peers.md").read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    (row,) = (line for line in lines if line.startswith("| plain Python ") and "2.50" in line)
    # CPU s, wall s, MB/s, M messages/s, of memcpy, of our CPU, peak, before.
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "2.50", "2.50", "40.00", "0.400", "0.00400", "50.00", "60", "50"
    ]  # fmt: skip
    drawn = ElementTree.fromstring((tmp_path / "peers.svg").read_text())
    assert len(drawn.findall(f"{SVG}rect[@class='peer']")) == 2  # a bar, and the legend
    assert len(drawn.findall(f"{SVG}rect[@class='quoted']")) == len(page.QUOTED) + 1
    short = ElementTree.fromstring((tmp_path / "decoders.svg").read_text())
    assert not short.findall(f"{SVG}rect[@class='quoted']")
    assert len(short.findall(f"{SVG}rect[@class='peer']")) == 2


def test_bars_are_as_long_as_their_logarithm() -> None:
    bars = [Bar("a", "ours", 1.0, "1"), Bar("<b>", "peer", 0.1, "0.1"), Bar("c", "peer", 0.01, "&")]
    drawn = ElementTree.fromstring(chart({"one": bars, "two": [Bar("d", "peer", None, "fails")]}, "axis", {}))
    widths = [
        float(rect.get("width", 0)) for rect in drawn.findall(f"{SVG}rect") if rect.get("class") != "page"
    ]
    assert len(widths) == 3
    assert widths[0] == pytest.approx(2 * widths[1])
    assert widths[2] == 1.5  # at the axis, and still to be seen
    texts = [text.text for text in drawn.findall(f"{SVG}text")]
    assert {"<b>", "&", "fails", "axis"} <= set(texts)
    assert "prefers-color-scheme: dark" in (drawn.findtext(f"{SVG}style") or "")


def test_what_was_measured_once_is_told_apart() -> None:
    text = page.quoted()
    assert page.QUOTED_ON in text
    assert page.quoted_ratio(page.QUOTED[0], "wide text") == pytest.approx(837 / 7200)
    # Where no MB/s were noted they follow from the messages.
    assert page.quoted_ratio(page.QUOTED[1], "pgbench") == pytest.approx(0.0164, rel=0.02)


def test_the_page_names_all_peers() -> None:
    text = (ROOT / "docs" / "peers.md").read_text()
    figures = text[text.index(page.BEGIN) : text.index(page.END)]
    for peer in PEERS:
        rows = re.findall(rf"^\| {re.escape(peer.name)}(?:| \(10% .*|: .*) +\|", figures, re.MULTILINE)
        assert len(rows) == len(peer.corpora) + 1, peer.name
    assert page.quoted().strip() in figures
    for chart_of, peers in (
        ("peers.svg", PEERS),
        ("decoders.svg", [peer for peer in PEERS if "wide text" in peer.corpora]),
    ):
        names = [each.text for each in ElementTree.parse(ROOT / "docs" / chart_of).iter(f"{SVG}text")]
        assert {peer.name for peer in peers} <= set(names)
