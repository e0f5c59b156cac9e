"""The table of message kinds: each tag byte has one name, and no other file has a copy of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from pgoutput_fast.base import errors
from pgoutput_fast.protocol import kinds
from support.paths import ROOT

SOURCE = ROOT / "src" / "pgoutput_fast"
CORE = SOURCE / "_core"
PYTHON = sorted(SOURCE.rglob("*.py"))
COMPILED = sorted(path for pattern in ("*.pyx", "*.pxd", "*.hpp") for path in CORE.rglob(pattern))

TABLE = ("protocol/kinds.py", "_core/protocol/kinds.pxd")
TAGS = "".join(chr(kind) for kind in kinds.MESSAGE_KINDS)

# Where a letter that is a tag, too, means something else: file -> (what the line has, why).
OTHER_MEANINGS = {
    "_core/tagging/scan.pyx": ("c'A' <= p[i] <= c'F'", "hex digits"),
    "encode/printed.py": ('{"A": 8, "B": 4, "C": 2, "D": 1}', "weights in a tsquery"),
    "cli/targets.py": ('_DUCKDB = b"DUCK"', "what a file of DuckDB begins with"),
}


def _constants(prefix: str) -> dict[str, int]:
    return {name: tag for name, tag in vars(kinds).items() if name.startswith(prefix)}


# ---- the table -----------------------------------------------------------------------------------------------------


def test_each_kind_has_one_constant_that_is_called_as_the_kind_is() -> None:
    constants = _constants("MSG_")
    assert constants == {f"MSG_{name.upper()}": kind for kind, name in kinds.KIND_NAMES.items()}
    assert len(set(kinds.MESSAGE_KINDS.values())) == len(kinds.MESSAGE_KINDS) == len(constants) == 19
    assert errors.MESSAGE_KINDS is kinds.MESSAGE_KINDS


@pytest.mark.parametrize("prefix", ["TUPLE_", "COLUMN_"])
def test_parts_of_a_message_have_tags_of_their_own(prefix: str) -> None:
    constants = _constants(prefix)
    assert len(set(constants.values())) == len(constants) > 2


def test_each_kind_is_in_the_sets_that_it_belongs_to() -> None:
    whole = [*kinds.BOUNDARIES, *kinds.DESCRIPTIONS, *kinds.KEPT_UNTIL_COMMIT, kinds.MSG_ORIGIN]
    assert sorted(whole) == sorted(kinds.MESSAGE_KINDS)
    for name, kind in _constants("MSG_").items():
        said = kinds.KIND_NAMES[kind]
        assert (kind in kinds.COMMITS) == ("commit" in said), name
        assert (kind in kinds.ROLLBACKS) == (said.startswith("rollback") or said == "stream_abort"), name
        assert (kind in kinds.OPENINGS) == (said.startswith("begin") or said == "stream_start"), name
        assert (kind in kinds.SENT_IN_FULL) == (
            kind in kinds.BOUNDARIES
            and kind not in kinds.OPENINGS
            and kind not in (kinds.MSG_STREAM_STOP, kinds.MSG_STREAM_ABORT)
        ), name


# ---- literals ------------------------------------------------------------------------------------------------------


def _literals_in_python(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Literals that mean tag bytes: bytes made of nothing else, `ord` of a letter, and letters compared with a kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            letters = node.value.strip(b"\0").decode("latin-1")
            if letters and set(letters) <= set(TAGS):
                yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "ord":
            if isinstance(node.args[0], ast.Constant) and node.args[0].value in list(TAGS):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Compare):
            names = {getattr(node.left, "id", None), getattr(node.left, "attr", None)}
            if names & {"kind", "kinds", "tag"} or _is_chr(node.left):
                for other in node.comparators:
                    if isinstance(other, ast.Constant) and _means_kinds(other.value):
                        yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            if len(keys) == len(node.keys) and all(key in list(TAGS) for key in keys):
                yield node.lineno, "a dict by letters"


def _is_chr(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "chr"


def _means_kinds(value: object) -> bool:
    if isinstance(value, str):
        return value != "" and set(value) <= set(TAGS)
    return type(value) is int and value in kinds.MESSAGE_KINDS


_LITERALS = (
    re.compile(rf"(?<![\w'])c?'[{TAGS}]'"),
    re.compile(rf"(?<!\w)b\"[{TAGS}]+\""),
    re.compile(rf"\bord\(\"[{TAGS}]\"\)"),
    re.compile(rf"^\s*\"[{TAGS}]\":"),
    re.compile(r"\bkind(?:\[\w+\])? [=!]= (?:0x[0-9a-f]+|[1-9][0-9]*)"),
)


def _literals_in_compiled(text: str, cpp: bool) -> Iterator[tuple[int, str]]:
    """The same in Cython. In C++ letters of values are everywhere: there only those count that meet a kind.

    What stands between three quotes is passed over: docstrings, and C++ for libpq.
    """
    text = re.sub(r'"""[\s\S]*?"""', lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), 1):
        code = re.sub(r"\s//.*|^//.*" if cpp else r"(?<!\S)#.*", "", line)
        if cpp and not re.search(r"\b(?:kind|tag)\b", code):
            continue
        for pattern in _LITERALS:
            for found in pattern.finditer(code):
                yield number, found[0]


def _found() -> tuple[list[str], set[str]]:
    """Literals with their places, and the exceptions that were needed."""
    found, needed = [], set()
    for path in PYTHON + COMPILED:
        text = path.read_text()
        if path.suffix == ".py":
            literals = _literals_in_python(ast.parse(text))
        else:
            literals = _literals_in_compiled(text, path.suffix == ".hpp")
        name = str(path.relative_to(SOURCE))
        part, _ = OTHER_MEANINGS.get(name, (None, ""))
        for number, what in literals:
            if part is not None and part in text.split("\n")[number - 1]:
                needed.add(name)
            elif name not in TABLE:
                found.append(
                    f"{path.relative_to(ROOT)}:{number}: {what} is a tag byte: use its name in kinds.py"
                )
    return found, needed


def test_no_other_file_has_tag_bytes() -> None:
    found, needed = _found()
    assert not found, "\n".join(found)
    assert needed == OTHER_MEANINGS.keys(), "an exception that nothing needs any more"


@pytest.mark.parametrize(
    "code",
    [
        'ends = list(b"CcKAr")',
        'chosen = F.col("kind").isin(*b"RY\\0")',
        'kind == ord("M")',
        'if kind == "S": pass',
        "kind == 66",
        'message.kind in "Bb"',
        'names = {"B": "begin", "C": "commit"}',
    ],
)
def test_a_literal_in_python_is_found(code: str) -> None:
    assert list(_literals_in_python(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "if kind == c'B':",
        'for tag in b"IUD":',
        "XID_AT[c'r'] = 34",
        "if w.kind[i] == 0x42:",
        'kinds[ord("B")] = name',
        '    "B": "begin",',
    ],
)
def test_a_literal_in_compiled_code_is_found(code: str) -> None:
    assert list(_literals_in_compiled(code, cpp=False))


def test_a_literal_in_cpp_is_found_where_it_meets_a_kind() -> None:
    assert list(_literals_in_compiled("if (kind == 'I') return;", cpp=True))
    assert not list(_literals_in_compiled("value['a' + i] = 'A';", cpp=True))
