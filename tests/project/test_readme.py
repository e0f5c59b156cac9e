"""The README: its programs print what it says, and its figures are those of the benchmarks."""

import contextlib
import doctest
import importlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast
from pgoutput_fast.cli.main import main
from support import pg
from support.paths import ROOT

TEXT = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", TEXT, re.DOTALL)


def _printed(program: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "README.md", "exec"), names)
    return out.getvalue()


def test_each_program_says_what_it_prints() -> None:
    assert len(PROGRAMS) == TEXT.count("```python") - 1 == 3  # one writes a file


def test_the_programs_that_follow_and_mirror(
    servers: pg.Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    try:
        assert _printed(PROGRAMS[0][0], names) == PROGRAMS[0][1]
        (command,) = re.findall(r"^    pgoutput-fast (mirror .*)$", TEXT, re.MULTILINE)
        words = shlex.split(command.replace("host=localhost dbname=shop", names["server"].dsn))
        assert main([*words, "--until", "now", "--quiet"]) == 0
        assert _printed(PROGRAMS[1][0], names) == PROGRAMS[1][1]  # the same mirror goes on
    finally:
        names["server"].close()


@pytest.mark.slow
def test_all_programs_one_after_the_other(servers: pg.Servers, tmp_path: Path) -> None:
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    program = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        done.stdout.rstrip() == "".join(printed for _, printed in PROGRAMS).rstrip()
    )  # show() adds an empty line


@pytest.mark.parametrize(
    ("said", "measured"),
    [
        (r"16 columns in ([\d.]+) s", r"### wide text.*?\n\| decode +\| ([\d.]+)"),
        (r"can send: ([\d,]+) wide rows", r"\n\| our mirror +\| +current \|[^|]*\| +([\d,]+)"),
        (r"or ([\d,]+)\s+updates at random keys", r"\n\| our mirror, merge on read +\|[^|]*\| +([\d,]+)"),
        (r"a backlog of wide rows.*?\| ([\d,]+)", r"\n\| our mirror +\| +current \|[^|]*\| +([\d,]+)"),
        (
            r"a backlog of wide rows.*?\| [\d,]+ \| ([\d,]+)",
            r"\n\| Debezium embedded[^|]*\| +current \|[^|]*\| +([\d,]+)",
        ),
        (
            r"takes ([\d.]+) times the CPU",
            r"### wide text: 0.48.*?\n\| write_raw\(paths\), committed +\|(?:[^|]*\|){3} +([\d.]+)",
        ),
    ],
)
def test_the_figures_are_those_of_the_benchmarks(said: str, measured: str) -> None:
    """They are rounded, and each run of the benchmarks has others. More than half away, they are wrong."""
    figures = (ROOT / "benchmarks" / "README.md").read_text()
    here, there = re.search(said, TEXT, re.DOTALL), re.search(measured, figures, re.DOTALL)
    assert here is not None
    assert there is not None
    ratio = float(here[1].replace(",", "")) / float(there[1].replace(",", ""))
    assert 2 / 3 < ratio < 3 / 2


def test_pages_that_the_readme_names_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("repository", [None, "https://code.example/pgoutput_fast"])
def test_links_on_pypi_lead_somewhere(repository: str | None, tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    if repository:
        with (tmp_path / "pyproject.toml").open("a") as file:
            file.write(f'[project.urls]\nRepository = "{repository}"\n')
    (tmp_path / "src" / "pgoutput_fast").mkdir(parents=True)
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('.')",
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    shown = message_from_string(metadata.read_text())
    assert shown["Description-Content-Type"] == "text/markdown"
    text = shown.get_payload().strip()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert len(links) == (len(re.findall(r"\]\(([^)\s]+)\)", TEXT)) if repository else 0)
    if repository:
        assert f"[benchmarks]({repository}/blob/v0.1.0/benchmarks/README.md)" in text
        assert f"]({repository}/raw/v0.1.0/docs/decoders.svg)" in text
    code = re.findall(r"```.*?```", TEXT, re.DOTALL)
    assert re.findall(r"```.*?```", text, re.DOTALL) == code


@pytest.mark.parametrize(
    "module",
    [
        "base.arguments",
        "cli.passwords",
        "cli.problems",
        "cli.screen",
        "catalog.relations",
        "decoding.result",
        "decoding.decoder",
        "encode.writer",
        "encode.values",
        "base.errors",
        "tables.directories",
        "decoding.framing",
        "catalog.formatting",
        "base.display",
        "postgres.session",
        "messages.describe",
        "messages.recvlogical",
        "messages.formatting",
        "protocol.lsn",
        "catalog.identifiers",
        "schema.options",
        "segments.segment",
        "segments.write",
        "decoding.state",
        "schema.evolution",
        "catalog.user_types",
        "merge.effect.net_effect",
        "merge.effect.key_groups",
        "merge.match",
        "merge.effect.origins",
        "merge.effect.column_names",
        "merge.effect.take",
        "merge.effect.unfilled",
    ],
)
def test_docstring_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"pgoutput_fast.{module}"))
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("name", [name for name in pgoutput_fast.__all__ if name != "TAGGED_SCHEMA"])
def test_every_public_name_has_an_example_of_its_own(name: str) -> None:
    assert ">>> " in (getattr(pgoutput_fast, name).__doc__ or "")
