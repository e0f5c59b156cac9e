"""The table of reason codes: each has one name, one number and a sentence, and nothing else has a copy of them."""

from __future__ import annotations

import ast
import importlib.util
import re
import string
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_fast.base.errors import reason_text
from pgoutput_fast.protocol.reasons import FIRST_NOTED, FIRST_UNREPRESENTABLE, OK, Reason
from pgoutput_fast.schema.column_types import ColumnType
from support.paths import ROOT

SOURCE = ROOT / "src" / "pgoutput_fast"
CORE = SOURCE / "_core"
PYTHON = sorted(path for path in SOURCE.rglob("*.py") if path.name != "reasons.py")
CYTHON = sorted(path for pattern in ("*.pyx", "*.pxd") for path in CORE.rglob(pattern))
HEADERS = sorted(path for path in CORE.rglob("*.hpp") if path.name != "reasons.hpp")

_PLACES = {"type", "arrow", "hint", "sent", "described"}
_COLUMNS = (
    None,
    ColumnType(pa.int32(), "int4", name="int4"),
    ColumnType(pa.timestamp("us", "UTC"), "timestamptz", name="timestamptz"),
    ColumnType(pa.list_(pa.string()), "list", name="public.mood[]"),
    ColumnType(pa.struct([(f"field {k}", pa.string()) for k in range(100)]), "record", name="public.wide"),
)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_generate_tables", ROOT / "ci" / "generate_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_generated_is_as_the_tables_say(generator: ModuleType) -> None:
    stale = [str(path.relative_to(ROOT)) for path in generator.stale_files()]
    assert not stale, f"{stale}: run `python ci/generate_tables.py`, then compile again"


def test_a_change_in_the_table_is_a_stale_file(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = generator.load_module

    def load_changed(path: Path) -> ModuleType:
        module = load(path)
        if path.stem == "reasons":
            module.Reason = [*module.Reason, SimpleNamespace(name="NEW_CODE", value=250)]
        return module

    monkeypatch.setattr(generator, "load_module", load_changed)
    stale = generator.stale_files()
    assert [path.name for path in stale] == ["reasons.hpp", "reasons.pxd"]
    assert "    NEW_CODE = 250,\n" in stale[CORE / "protocol/reasons.hpp"]
    assert '        NEW_CODE "pgo::NEW_CODE"\n' in stale[CORE / "protocol/reasons.pxd"]


# ---- names and numbers ---------------------------------------------------------------------------------------------


def test_names_and_numbers_are_unique() -> None:
    assert len(Reason.__members__) == len({reason.value for reason in Reason}) == len(list(Reason))
    assert all(OK < reason.value < 256 for reason in Reason), "a code is one byte, and 0 is no reason"


def test_numbers_tell_what_becomes_of_a_value() -> None:
    assert min(reason for reason in Reason if reason >= FIRST_NOTED) is Reason.LOWER_BOUND
    unrepresentable = [reason for reason in Reason if FIRST_UNREPRESENTABLE <= reason < FIRST_NOTED]
    assert {Reason.IS_NAN, Reason.NOT_UTF8, Reason.TOO_MUCH_TEXT} <= set(unrepresentable)
    malformed = [reason for reason in Reason if reason < FIRST_UNREPRESENTABLE]
    assert {Reason.TRUNCATED, Reason.BAD_NESTED, Reason.ROW_TOO_LONG} <= set(malformed)


# ---- sentences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_each_code_has_one_plain_sentence(reason: Reason) -> None:
    places = {name for _, name, _, _ in string.Formatter().parse(reason.sentence) if name is not None}
    assert places <= _PLACES
    for column in _COLUMNS:
        # As a number is how the compiled stages give it.
        text = reason_text(int(reason), column, 3, 5)
        assert text.strip() == text != ""
        assert not re.search(r"[{}\n]|  |(?<!\.)\. |(?<!\.)\.$|\bNone\b", text), text
        assert len(text) < 400
    if "sent" in places:
        assert "3" in text
    if "described" in places:
        assert "5" in text


def test_no_two_codes_share_a_sentence() -> None:
    said: dict[str, str] = {}
    for reason in Reason:
        other = said.setdefault(reason.sentence, reason.name)
        assert other == reason.name, f"{other} and {reason.name} say the same"


def test_a_sentence_names_the_columns_type() -> None:
    named = ColumnType(pa.timestamp("us", "UTC"), "timestamptz", name="timestamptz")
    assert reason_text(Reason.BAD_TEXT, named) == (
        "the text is not timestamptz as PostgreSQL prints it (decoding needs DateStyle=ISO)"
    )
    assert reason_text(Reason.IS_INFINITE, named) == "an infinite value has no timestamp[us, tz=UTC] form"
    assert reason_text(Reason.BAD_LENGTH) == "the value does not have the length of its type"


def test_an_unknown_code_has_no_sentence() -> None:
    with pytest.raises(ValueError, match="250"):
        reason_text(250)


# ---- nothing is a bare number --------------------------------------------------------------------------------------


def _bare_in_python(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Places where a number stands for a code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in ("reason_text", "Reason", "Malformed"):
            if node.args and _is_number(node.args[0]):
                yield node.lineno, f"{_name(node.func)}() gets a number"
        elif isinstance(node, ast.Compare) and any(
            _name(each) == "reason" for each in [node.left, *node.comparators]
        ):
            if any(_is_number(each) for each in [node.left, *node.comparators]):
                yield node.lineno, "a reason is compared with a number"
        elif isinstance(node, ast.keyword) and node.arg == "reason" and _is_number(node.value):
            yield node.value.lineno, "a reason is a number"
        elif isinstance(node, ast.Assign):
            names = [each for target in node.targets for each in ast.walk(target)]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if any(map(_is_number, values)) and any(
                _name(each) in {"reason", *Reason.__members__} for each in names
            ):
                yield node.lineno, "a code gets its number here"


def _name(node: ast.AST) -> str | None:
    """Of a variable, an attribute, or a column or item of that name."""
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _name(node.func.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def test_python_names_its_codes() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}, see reasons.py"
        for path in PYTHON
        for line, what in _bare_in_python(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


_NUMBER = r"(?:0x[0-9a-fA-F]+|[1-9][0-9]*)"
_DECLARED = re.compile(r"\b(?:cdef|def)\b[^\n(=]*?(\w+)\(([^()]*)\)")
_BARE = (
    (
        re.compile(rf"\breason\s*(?:[=!<>]=|[<>=])\s*{_NUMBER}\b"),
        "a reason is compared with a number, or set to one",
    ),
    (re.compile(rf"\b(?:{'|'.join(Reason.__members__)})\s*=\s*[0-9]"), "a code gets its number here"),
    (
        re.compile(rf"\b(?:reason_text|Malformed)\(\s*{_NUMBER}\b"),
        "a function that takes a code gets a number",
    ),
)


def _bare_in_core(text: str, takers: dict[str, int]) -> Iterator[tuple[int, str]]:
    """The same in Cython and C++. `takers` has functions that take a code, and as which argument."""
    text = _without_comments(text)
    for pattern, what in _BARE:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, what
    for found in re.finditer(r"\b(\w+)\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text):
        at = takers.get(found[1])
        arguments = re.sub(r"\([^()]*\)", "", found[2]).split(",")
        if at is not None and at < len(arguments) and re.fullmatch(_NUMBER, arguments[at].strip()):
            yield text.count("\n", 0, found.start()) + 1, f"{found[1]}() gets a number"


def _takers(text: str) -> dict[str, int]:
    found = {}
    for declared in _DECLARED.finditer(_without_comments(text)):
        names = [each.split()[-1] for each in declared[2].split(",") if each.strip()]
        if "reason" in names:
            found[declared[1]] = names.index("reason") - (names[0] == "self")
    return found


def _without_comments(text: str) -> str:
    """Comments and docstrings are gone, lines stay where they are."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    return re.sub(
        r'"""[\s\S]*?"""|(?<!\S)#(?!include|define|if|endif|pragma).*|//.*|/\*[\s\S]*?\*/', blank, text
    )


def test_compiled_code_names_its_codes() -> None:
    shared = {
        name: at for path in CYTHON if path.suffix == ".pxd" for name, at in _takers(path.read_text()).items()
    }
    assert {"fail", "fail_in", "reject_into", "wrong"} <= shared.keys()
    found = []
    for path in CYTHON + HEADERS:
        if path.name in ("reasons.pxd", "reasons.hpp"):
            continue
        text = path.read_text()
        for line, what in _bare_in_core(text, shared | _takers(text)):
            found.append(f"{path.relative_to(ROOT)}:{line}: {what}, see reasons.py")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "reason_text(54)",
        "Malformed(3, 0)",
        "problem.reason == 30",
        "found['reason'].to_numpy() != 0",
        "COPY_TRUNCATED, COPY_TRAILING_BYTES = 60, 61",
        "OUTCOME_UNKNOWN = 54",
        "Trouble(reason=3)",
    ],
)
def test_a_number_in_python_is_found(code: str) -> None:
    assert list(_bare_in_python(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "cdef enum:\n    COPY_TRUNCATED = 60",
        "if f.reason == 3:",
        "place.reason = 59",
        "self.fail(w, i, 20, 0)",
        "stop(place, 58, 0)",
        "wrong(f, 4, f.at - 1)",
        "raise Malformed(3, w.length[i])",
    ],
)
def test_a_number_in_compiled_code_is_found(code: str) -> None:
    takers = {"fail": 2, "wrong": 1} | _takers(
        "cdef void stop(Place* place, uint8_t reason, int64_t offset) noexcept"
    )
    assert list(_bare_in_core(code, takers))


def test_codes_that_python_sees_are_those_of_the_table() -> None:
    import pgoutput_fast as pgo

    def code_of(payloads: Any) -> str:
        with pytest.raises(pgo.DecodeError) as raised:
            pgo.decode(payloads)
        return raised.value.reason

    assert code_of([b""]) == Reason.EMPTY_PAYLOAD.sentence
    assert code_of([b"B"]) == Reason.TRUNCATED.sentence
    assert code_of([b"C" + bytes(25)]) == Reason.EXPECTED_BEGIN.sentence
