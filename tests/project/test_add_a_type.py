"""docs/contributing/add-a-type.md: every step of every built-in type and message kind is done. A failure names the file to edit."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.corpora import columns, printed_columns

import pgoutput_fast.encode.printed as encode_printed
import pgoutput_fast.encode.values as encode_values
from cells import scalar_cases
from pgoutput_fast import Column, Options, encode
from pgoutput_fast.catalog.builtin_types import BUILT_IN_TYPES, OID_OF_NAME
from pgoutput_fast.protocol.kinds import (
    BOUNDARIES,
    KEPT_UNTIL_COMMIT,
    KIND_NAMES,
    MESSAGE_KINDS,
    MSG_STREAM_STOP,
)
from pgoutput_fast.schema import column_types
from pgoutput_fast.schema.column_types import column_type_of
from reference import messages as reference
from reference import printed as reference_printed
from reference import types as reference_types
from support.named_places import PACKAGE, ROOT, path_of

# Ranges, multiranges and point are made of other types: they have no converter of their own.
TYPES = [each.name for each in BUILT_IN_TYPES if each.kind == "base" and each.name != "point"]
# No client can write them: the server takes no input, or has no binary form.
NOT_WRITTEN = {"pg_node_tree", "aclitem", "gtsvector"}
REGISTRY = PACKAGE / "_core" / "types" / "registry.hpp"
COLUMN_TYPES = PACKAGE / "schema" / "column_types.py"


def file_of(module: ModuleType) -> str:
    """The file of a module, wherever the folder of the tests is."""
    assert module.__file__ is not None
    if module.__name__.startswith("pgoutput_fast."):  # it may be installed elsewhere
        return f"src/{module.__name__.replace('.', '/')}.py"
    return str(Path(module.__file__).resolve().relative_to(ROOT))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- a type --------------------------------------------------------------------------------------------------------


@functools.cache
def converter_of(name: str) -> str:
    """The converter that a type has by default; empty as long as it has no form."""
    if name not in column_types._FORMS:
        return ""
    return column_type_of(Column("c", OID_OF_NAME[name]), Options()).kernel


@functools.cache
def converters() -> dict[str, list[str]]:
    """Of each converter in the registry: the functions for text and for binary, as written."""
    found = {}
    for name, rest in re.findall(
        r'\{"(\w+)",\s*Layout::\w+,\s*\w+,\s*(.*?)\},?\n', REGISTRY.read_text(), re.DOTALL
    ):
        depth, parts = 0, [""]
        for letter in rest:
            depth += (letter in "<(") - (letter in ">)")
            if letter == "," and not depth:
                parts.append("")
            else:
                parts[-1] += letter
        found[name] = [part.strip() for part in parts if part.strip()]
    return found


@functools.cache
def native_sources() -> str:
    """All headers of the compiled core but the registry."""
    return "\n".join(
        each.read_text() for each in sorted((PACKAGE / "_core").rglob("*.hpp")) if each != REGISTRY
    )


def words_of_tables(text: str) -> set[str]:
    """The words in the first column of the tables of a page, or of a docstring."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return set(re.findall(r"\w+", " ".join(rows)))


def is_named(name: str, words: set[str]) -> bool:
    """Whether a table has a type; `regclass and the other reg*` names all of those."""
    return name in words or (name.startswith("reg") and {"regclass", "reg"} <= words)


def missing_steps_of_the_package(name: str) -> Iterator[str]:
    if name not in column_types._FORMS:
        yield f"add its converter and its Arrow type to _FORMS in {shown(COLUMN_TYPES)}"
        return
    converter = converter_of(name)
    functions = converters().get(converter, [])
    if len(functions) != 2:
        yield (
            f'add {{"{converter}", ..., its function for text, its function for binary}} to KERNELS in {shown(REGISTRY)}'
        )
    for function in re.findall(r"[A-Za-z_]\w*", " ".join(functions)):
        if re.search(rf"\b{function}\b", native_sources()) is None:
            yield f"write {function}, which {shown(REGISTRY)} names, in a header of src/pgoutput_fast/_core/types/"

    if name not in NOT_WRITTEN:
        if name not in encode_values._CODECS:
            yield f"add it to _PARSERS in {file_of(encode_printed)}, or to _CODECS in {file_of(encode_values)}"
        if not is_named(name, words_of_tables(encode_values.__doc__ or "")):
            yield f"add it to the table in the docstring of {file_of(encode_values)}"

    summary, _, exact = (ROOT / "docs/types.md").read_text().partition("## Each built-in type")
    for text, place in ((summary, "at the top"), (exact, "of each built-in type")):
        if not is_named(name, words_of_tables(text)):
            yield f"add it to the table {place} in docs/types.md"


def missing_steps_of_the_tests(name: str) -> Iterator[str]:
    # These modules use the steps above when they are imported.
    from cells import built_in as cells_built_in
    from cells import built_in_cases, every_type

    oid, converter = OID_OF_NAME[name], converter_of(name)
    tested = {each.oid for each in every_type.SCALARS.values()}
    if converter not in {converter_of(each) for each in TYPES if OID_OF_NAME[each] in tested}:
        yield f"add good and damaged cells to SCALARS in {file_of(cells_built_in)}"
    if name not in {*built_in_cases.CASES, *scalar_cases.CASES, *NOT_WRITTEN}:
        yield f"add SQL literals to CASES in {file_of(built_in_cases)}"

    if oid not in reference_types.NAME_OF_OID:
        yield f"add its oid and name to BUILT_IN in {file_of(reference_printed)}"
    else:
        tables = {"TEXT": reference_types.FROM_TEXT, "BINARY": reference_types.FROM_BINARY}
        for (form, table), written in zip(tables.items(), converters().get(converter, ()), strict=False):
            # By default the reference decoder takes a cell as text. It reads a numeric by its modifier and its options.
            is_default = table.get(name) in (None, reference_types.string)
            if is_default and written != "string_any" and name != "numeric":
                yield f"add it to PRINTED_FROM_{form} in {file_of(reference_printed)}"

    measured = {kind.oid for kind in (columns.TYPES | printed_columns.PRINTED_TYPES).values()}
    if converter not in {converter_of(each) for each in TYPES if OID_OF_NAME[each] in measured} | {"unknown"}:
        yield f"add a column of it to PRINTED_TYPES in {file_of(printed_columns)}"


@pytest.mark.parametrize("name", TYPES)
def test_the_package_has_every_step_of_a_type(name: str) -> None:
    missing = [f"{name}: {step}" for step in missing_steps_of_the_package(name)]
    assert not missing, "\n" + "\n".join(missing)


@pytest.mark.parametrize("name", TYPES)
def test_the_tests_have_every_step_of_a_type(name: str) -> None:
    missing = [f"{name}: {step}" for step in missing_steps_of_the_tests(name)]
    assert not missing, "\n" + "\n".join(missing)


# ---- a message kind ------------------------------------------------------------------------------------------------


def missing_steps_of_a_kind(kind: int) -> Iterator[str]:

    name, constant = KIND_NAMES[kind], f"MSG_{KIND_NAMES[kind].upper()}"
    core = PACKAGE / "_core"

    def lacks(path: Path, what: str = constant) -> bool:
        return re.search(rf"\b{what}\b", path.read_text()) is None

    if lacks(core / "protocol" / "kinds.pxd", f"{constant} = {kind:#x}"):
        yield "run `python ci/generate_tables.py`, which writes src/pgoutput_fast/_core/protocol/kinds.pxd"
    if lacks(core / "tagging" / "scan.pyx"):
        yield f"say how its header is read: name {constant} in src/pgoutput_fast/_core/tagging/scan.pyx"
    if kind in BOUNDARIES:
        # A Stream Stop has no fields.
        if kind != MSG_STREAM_STOP and lacks(core / "protocol" / "boundary.pyx"):
            yield f"read its fields: name {constant} in src/pgoutput_fast/_core/protocol/boundary.pyx"
        if lacks(core / "tagging" / "transactions.pyx"):
            yield f"say what it does to transactions: name {constant} in src/pgoutput_fast/_core/tagging/transactions.pyx"
    elif lacks(core / "tagging" / "tag.pyx") and lacks(core / "rows" / "slice.pyx"):
        yield (
            f"say what it does: name {constant} in src/pgoutput_fast/_core/tagging/tag.pyx, or, for a change, in "
            "src/pgoutput_fast/_core/rows/slice.pyx"
        )
    if kind not in KEPT_UNTIL_COMMIT and lacks(PACKAGE / "parallel_tag" / "summarizer.py"):
        yield f"say what it does to a part of a stream: name {constant} in src/pgoutput_fast/parallel_tag/summarizer.py"
    if f"encode_{name}" not in encode.__all__ or not hasattr(encode, f"encode_{name}"):
        yield (
            f"write encode_{name} in src/pgoutput_fast/encode/messages.py, and add it to __all__ in "
            "src/pgoutput_fast/encode/__init__.py"
        )
    if lacks(PACKAGE / "encode" / "writer.py", f"encode_{name}"):
        yield f"call encode_{name} in a method of Writer in src/pgoutput_fast/encode/writer.py"
    if re.search(rf'"{chr(kind)}": self\.', Path(str(reference.__file__)).read_text()) is None:
        yield f'write it a second time: add "{chr(kind)}" to the methods in {file_of(reference)}'
    if MESSAGE_KINDS[kind] not in (ROOT / "docs" / "contributing" / "protocol.md").read_text():
        yield f"name {MESSAGE_KINDS[kind]} in docs/contributing/protocol.md"


@pytest.mark.parametrize("kind", MESSAGE_KINDS, ids=lambda kind: KIND_NAMES[kind])
def test_every_step_of_a_message_kind_is_done(kind: int) -> None:
    missing = [f"{MESSAGE_KINDS[kind]}: {step}" for step in missing_steps_of_a_kind(kind)]
    assert not missing, "\n" + "\n".join(missing)


# ---- the page ------------------------------------------------------------------------------------------------------


def test_files_that_the_page_names_exist() -> None:
    page = (ROOT / "docs" / "contributing" / "add-a-type.md").read_text()
    files = re.findall(r"`([\w/.]+\.(?:py|hpp|pyx|pxd|md))`", page)
    assert len(files) > 30
    missing = sorted({file for file in files if not path_of(file).is_file()})
    assert not missing, f"docs/contributing/add-a-type.md names files that do not exist: {missing}"
