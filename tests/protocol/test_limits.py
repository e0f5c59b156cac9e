"""A limit stands in one place: in `_core/protocol/limits.hpp` for the stages, in `protocol/limits.py` for Python modules."""

from __future__ import annotations

import re

import pytest

from pgoutput_fast.protocol import limits
from support.paths import ROOT

PACKAGE = ROOT / "src" / "pgoutput_fast"
SUFFIXES = (".hpp", ".pxd", ".py", ".pyi", ".pyx")

# Numbers that say by themselves which limit they are; others, as 1 << 22, are many things.
NUMBERS = {
    0x3FFFFFFF: "MAX_PAYLOAD",
    0x7FFFFFFF: "MAX_OFFSET",
    520: "BLOCK_ROWS",
    147_460: "LONGEST_NUMERIC",
}
NUMBER = re.compile(r"(?<![\w.])(?:0[xX][0-9a-fA-F'_]+|[1-9][0-9'_]*)(?![\w.])")


def sources() -> dict[str, str]:
    """What the package is made from, without what a compilation leaves there."""
    if not PACKAGE.is_dir():
        pytest.skip("the sources are not here")
    files = [path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES]
    assert len(files) > 100
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in files}


def test_a_number_stands_in_one_place() -> None:
    found = {
        (NUMBERS[number], name)
        for name, text in sources().items()
        for number in {int(re.sub("['_]", "", each), 0) for each in NUMBER.findall(text)} & NUMBERS.keys()
    }
    assert found == {(limit, "_core/protocol/limits.hpp") for limit in NUMBERS.values()}


def test_a_limit_is_defined_in_one_place() -> None:
    texts = sources()
    of_stages = re.findall(r"constexpr int64_t (\w+) =", texts["_core/protocol/limits.hpp"])
    assert len(of_stages) == texts["_core/protocol/limits.hpp"].count("constexpr") > 5
    assert re.findall(r"const int64_t (\w+)", texts["_core/protocol/limits.pxd"]) == of_stages
    names = dict.fromkeys(of_stages, "_core/protocol/limits.hpp") | dict.fromkeys(
        limits.__all__, "protocol/limits.py"
    )
    for name, place in names.items():
        defined = re.compile(rf"\b_?{name}\b(?:, \w+)* =[^=]", re.MULTILINE)
        assert [file for file, text in texts.items() if defined.search(text)] == [place], name


def test_a_sentence_stands_in_one_place() -> None:
    files = [name for name, text in sources().items() if "offsets are damaged: they" in text]
    assert files == ["_core/tagging/scan.pyx"]
