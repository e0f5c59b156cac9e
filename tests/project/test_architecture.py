"""docs/contributing/architecture.md: the drawing shows the imports that there are, and the functions that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import draw_architecture
from draw_architecture import BEGIN, COMMAND, END, PAGE, drawing, without_implied
from layers import LAYERS
from support.named_places import is_in, missing, named_places


def test_the_drawing_is_that_of_the_imports() -> None:
    text = PAGE.read_text()
    assert draw_architecture.page(text) == text, (
        f"docs/contributing/architecture.md is stale: run `{COMMAND}`"
    )


@pytest.mark.slow
def test_the_script_says_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    monkeypatch.setattr(draw_architecture, "ROOT", tmp_path)
    monkeypatch.setattr(draw_architecture, "PAGE", page)
    assert draw_architecture.main(["--check"]) == 1
    assert capsys.readouterr().out == f"page.md is stale: run `{COMMAND}`\n"
    assert draw_architecture.main([]) == 0
    assert draw_architecture.main(["--check"]) == 0
    assert re.fullmatch(r"before\n<!--.*\n```mermaid\n[^`]*```\n<!-- end -->\nafter\n", page.read_text())
    page.write_text("no marks")
    with pytest.raises(SystemExit, match=r"page\.md has no marks"):
        draw_architecture.main([])


def test_implied_arrows_are_left_out() -> None:
    direct = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d", "c"}}
    assert without_implied(direct) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"c"}}


def test_every_group_is_a_box() -> None:
    boxes = re.findall(
        r'^ +\w+\["(.*)"\]$', drawing({group: set() for groups in LAYERS for group in groups}), re.M
    )
    assert len(boxes) == sum(map(len, LAYERS))
    assert "decoding/, transactions/" in boxes
    assert "spark/tasks/" in boxes
    assert "base/, protocol/" in boxes
    assert "__main__.py" in boxes[0]


def test_functions_that_the_page_names_exist() -> None:
    assert len(list(named_places(PAGE))) > 25
    found = missing(PAGE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "suffix", "found"),
    [
        ("f", "def f(): pass", ".py", True),
        ("C.f", "class C:\n    def f(self): pass", ".py", True),
        ("C.f", "class C: pass\ndef f(): pass", ".py", False),
        ("LAST", "LAST: int = 7", ".py", True),
        ("f", "x = f(1)", ".py", False),
        ("f", "cdef int64_t f(Window w) except -1:\n    pass", ".pyx", True),
        ("f", "x = f(1)", ".pyx", False),
        ("C.f", "cdef class C:\n    cdef int f(self):\n        pass", ".pyx", True),
        ("C.f", "cdef class C:\n    pass\n\ncdef int f():\n    pass", ".pyx", False),
        ("D.f", "cdef class C:\n    def f(self):\n        pass", ".pyx", False),
    ],
)
def test_what_counts_as_defined(name: str, text: str, suffix: str, found: bool, tmp_path: Path) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_text(text)
    assert is_in(name, path) == found


def test_a_missing_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| step | file | function |\n|---|---|---|\n"
        "| a | `base/errors.py` | `DecodeError`, `reason_text` |\n"
        "| b | `base/errors.py` | `no_such` |\n| c | `none.py` | `x` |\n"
    )
    monkeypatch.setattr("support.named_places.ROOT", tmp_path)
    assert missing(page) == [
        "page.md:4: base/errors.py has no no_such",
        "page.md:5: there is no file none.py",
    ]
