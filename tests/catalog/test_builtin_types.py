"""The table of built-in types is what servers say, every other place takes oids from it, and each type has a form."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from pgoutput_fast import Column, Options
from pgoutput_fast.catalog import builtin_types as table
from pgoutput_fast.catalog.builtin_types import (
    BUILT_IN_TYPES,
    FIRST_USER_OID,
    NAME_OF_OID,
    OID_OF_NAME,
    is_built_in,
)
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.schema.column_types import column_type_of
from support import pg
from support.paths import ROOT

SOURCE = ROOT / "src"
HOW_TO_WRITE_IT = "the table is stale: run `python ci/generate_types.py`"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_generate_types", ROOT / "ci" / "generate_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(server: Server, sql: str) -> list[tuple[Any, ...]]:
    connection = server.connect(dbname="postgres")
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())
    finally:
        connection.close()


# --- what servers say ---------------------------------------------------------------------------------------

# With what a range or a multirange is made of; before 14 there are no multiranges.
ROWS = """
    SELECT t.oid, t.typname, t.typarray, t.typdelim, t.typtype, coalesce(r.rngsubtype, 0)
    FROM pg_type AS t LEFT JOIN pg_range AS r ON r.rngtypid = t.oid WHERE t.oid < 10000
"""
MULTIRANGES = "SELECT rngmultitypid, rngtypid FROM pg_range WHERE rngtypid < 10000"
# Types that a column can have: those that are neither pseudo-types nor rows of system catalogs, nor arrays of one.
OF_COLUMNS = """
    SELECT t.oid, t.typname, coalesce(e.typname, t.typname)
    FROM pg_type AS t LEFT JOIN pg_type AS e ON e.typarray = t.oid
    WHERE t.oid < 10000 AND t.typisdefined AND coalesce(e.typtype, t.typtype) NOT IN ('p', 'c')
"""


def test_every_row_is_what_the_server_says(server: Server) -> None:
    kinds = {"base": "b", "range": "r", "multirange": "m"}
    there = {oid: tuple(row) for oid, *row in ask(server, ROWS)}
    ranges = dict(ask(server, MULTIRANGES)) if server.version >= 14 else {}
    common = [each for each in BUILT_IN_TYPES if each.oid in there]
    assert len(common) > 60
    for each in common:
        name, array_oid, delimiter, kind, of = there[each.oid]
        said = (name, each.oid, array_oid, delimiter, kind, ranges.get(each.oid, of))
        assert (*each[:4], kinds[each.kind], each.of) == said, HOW_TO_WRITE_IT
        if each.array_oid:
            array = f"_{each.name}"
            assert there[each.array_oid][:3] == (array, 0, each.delimiter), HOW_TO_WRITE_IT
            assert OID_OF_NAME[array] == each.array_oid


@pytest.fixture
def newest(servers: pg.Servers) -> Server:
    if not servers:
        pytest.skip(pg.HOW_TO_GET_SERVERS)
    return servers[max(servers)]


def test_no_type_of_the_newest_server_is_missing(newest: Server, generate: ModuleType) -> None:
    found = ask(newest, OF_COLUMNS)
    missing = {
        name for oid, name, element in found if not is_built_in(oid) and element not in generate.LEFT_OUT
    }
    assert missing == set(), f"{HOW_TO_WRITE_IT}, or name them in its LEFT_OUT"
    assert set(generate.LEFT_OUT).isdisjoint(OID_OF_NAME)
    if newest.version == generate.VERSION:
        there = {oid for oid, *_ in found}
        assert {name for oid, name in NAME_OF_OID.items() if oid not in there} == set(), HOW_TO_WRITE_IT
        assert set(generate.LEFT_OUT) <= {name for _, name, _ in found}, "LEFT_OUT names what is not there"


def test_the_files_are_what_the_script_writes(newest: Server, generate: ModuleType) -> None:
    if newest.version != generate.VERSION:
        pytest.skip(f"the table is that of PostgreSQL {generate.VERSION}")
    connection = newest.connect(dbname="postgres")
    try:
        rows = generate.read_rows(connection)
    finally:
        connection.close()
    assert [tuple(each) for each in rows] == [tuple(each) for each in BUILT_IN_TYPES], HOW_TO_WRITE_IT
    for path, text in generate.written(rows).items():
        assert path.read_text() == text, f"{path.name}: {HOW_TO_WRITE_IT}"


def test_lines_between_markers_are_replaced(generate: ModuleType) -> None:
    marker = f"  # begin: written by `{generate.COMMAND}` from PostgreSQL 18\n"
    text = f"# end\nbefore\n{marker}  old\n  older\n  # end\nafter\n"
    assert generate.between_markers(text, ["  new\n"]) == f"# end\nbefore\n{marker}  new\n  # end\nafter\n"
    with pytest.raises(ValueError, match="not enough values"):
        generate.between_markers("nothing", [])


# --- what the package makes of it ---------------------------------------------------------------------------


def test_nothing_is_there_twice() -> None:
    arrays = [each.array_oid for each in BUILT_IN_TYPES if each.array_oid]
    assert len(NAME_OF_OID) == len(OID_OF_NAME) == len(BUILT_IN_TYPES) + len(arrays)
    assert max(NAME_OF_OID) < FIRST_USER_OID


@pytest.mark.parametrize("row", BUILT_IN_TYPES, ids=lambda row: row.name)
def test_every_type_has_a_form(row: table.BuiltInType) -> None:
    kind = column_type_of(Column("c", row.oid), Options())
    assert (kind.name, kind.unknown, kind.delimiter) == (row.name, False, row.delimiter)
    if row.array_oid:
        array = column_type_of(Column("c", row.array_oid), Options())
        assert (array.name, array.child, array.element_oid) == (f"{row.name}[]", kind, row.oid)
        assert array.kernel == ("list_of_boxes" if row.delimiter == ";" else "list")


# The first server whose binary values become the same as its text; None if there is none. Other types agree on all.
AGREES_SINCE = dict.fromkeys(("lseg", "path", "box", "polygon", "line", "circle"), 12) | dict.fromkeys(
    (
        "regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regconfig", "regdictionary",
        "regnamespace", "regrole", "regcollation", "regdatabase", "aclitem", "gtsvector",
    )
)  # fmt: skip


@pytest.mark.parametrize("row", BUILT_IN_TYPES, ids=lambda row: row.name)
def test_since_when_binary_agrees_with_text(row: table.BuiltInType) -> None:
    since = AGREES_SINCE.get(row.name, 0)
    for oid in (row.oid, row.array_oid) if row.array_oid else (row.oid,):
        kind = column_type_of(Column("c", oid), Options())
        agrees = [major for major in (10, 11, 12, 18, 99) if kind.binary_agrees(major)]
        assert agrees == (
            [] if since is None else [major for major in (10, 11, 12, 18, 99) if major >= since]
        )


def test_binary_never_agrees_of_a_type_that_nobody_knows() -> None:
    for name in ("mood", "_mood"):
        assert not column_type_of(Column("c", 20_001, -1, False, "public", name), Options()).binary_agrees(99)


@pytest.mark.unsanitized
def test_the_table_imports_nothing_of_the_package() -> None:
    code = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("table", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(sorted(name for name in sys.modules if name.startswith(("pgoutput", "pyarrow"))))
"""
    path = SOURCE / "pgoutput_fast" / "catalog" / "builtin_types.py"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- oids stand nowhere else --------------------------------------------------------------------------------

THE_TABLES = {"builtin_types.py", "oids.hpp"}
# Numbers that mean other things as well: those below 100 any count, these a thousandth and the size of a cache. They
# are looked at only where an oid is meant. Any other number that is a type's oid is taken for one.
ALSO_OTHERWISE = {1000, 4096, FIRST_USER_OID}
# Constants of C++ that are lengths of texts, that of an oid among them.
LENGTHS = re.compile(r"\bLONGEST_\w+ = [0-9]+")


class Bare(NamedTuple):
    line: int
    oid: int


def is_oid(number: object) -> bool:
    return type(number) is int and (number in NAME_OF_OID or number == FIRST_USER_OID)


def is_plain(number: int) -> bool:
    return number >= 100 and number not in ALSO_OTHERWISE


def is_of_oids(name: str) -> bool:
    """Whether a name speaks of oids: `type_oid`, `oids`, `oidvector`; `type_code` is what DB-API calls them."""
    return name == "type_code" or any(part.startswith("oid") for part in name.lower().split("_"))


def oid_parameters(sources: list[str]) -> dict[str, set[int]]:
    """Of functions and classes: at which positions they take an oid."""
    found: dict[str, set[int]] = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                names = [each.arg for each in node.args.args if each.arg not in ("self", "cls")]
            elif isinstance(node, ast.ClassDef):
                fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                names = [each.id for each in fields if isinstance(each, ast.Name)]
            else:
                continue
            found.setdefault(node.name, set()).update(k for k, name in enumerate(names) if is_of_oids(name))
    return found


def says_oid(node: ast.AST) -> bool:
    within = list(ast.walk(node))
    names = [each.id for each in within if isinstance(each, ast.Name)]
    return any(map(is_of_oids, names + [each.attr for each in within if isinstance(each, ast.Attribute)]))


def literals(node: ast.AST) -> list[ast.Constant]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Constant) and is_oid(each.value)]


def in_python(source: str, parameters: dict[str, set[int]]) -> list[Bare]:
    """Oids that stand in the code; examples in docstrings are no code."""
    meant: list[ast.Constant] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and is_oid(node.value) and is_plain(node.value):
            meant.append(node)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            taken = [node.args[k] for k in parameters.get(called, ()) if k < len(node.args)]
            taken += [each.value for each in node.keywords if is_of_oids(each.arg or "")]
            for each in taken:
                meant += literals(each)
            meant += beside_its_name(node.args)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(says_oid, sides)):
                meant += [found for side in sides if not says_oid(side) for found in literals(side)]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            if any(map(says_oid, node.targets if isinstance(node, ast.Assign) else [node.target])):
                meant += literals(node.value)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            meant += beside_its_name(node.elts)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                parts = value.elts if isinstance(value, ast.Tuple) else [value]
                meant += beside_its_name([*([key] if key is not None else []), *parts])
    return sorted({Bare(each.lineno, each.value) for each in meant})


def beside_its_name(nodes: list[ast.expr]) -> list[ast.Constant]:
    """Numbers beside the name of the type whose oid they are, as in `("int4", 23)`."""
    values = [each for each in nodes if isinstance(each, ast.Constant)]
    texts = {each.value for each in values if isinstance(each.value, str)}
    return [
        each
        for each in values
        if is_oid(each.value) and {name := NAME_OF_OID.get(each.value, ""), name.removeprefix("_")} & texts
    ]


def in_native(source: str, comment: str) -> list[Bare]:
    """The same of C++ and Cython, by lines: whatever else a line says of oids, or of that type."""
    found = []
    for k, line in enumerate(source.splitlines(), 1):
        code = LENGTHS.sub("", line.split(comment)[0])
        of_oids = any(map(is_of_oids, re.findall(r"[A-Za-z]\w*", code)))
        quoted = re.findall(r'"(\w+)', code)
        for number in map(int, re.findall(r"(?<![\w.'])[0-9]+(?![\w.'])", code)):
            if not is_oid(number):
                continue
            name = NAME_OF_OID.get(number, "FIRST_USER_OID")
            if is_plain(number) or of_oids or any(text.startswith(name) for text in quoted):
                found.append(Bare(k, number))
    return found


PYTHON = sorted(path for path in SOURCE.rglob("*.py") if path.name not in THE_TABLES)
NATIVE = sorted(
    path
    for ending in ("hpp", "pyx", "pxd")
    for path in SOURCE.rglob(f"*.{ending}")
    if path.name not in THE_TABLES
)


def test_no_oid_of_a_type_stands_in_the_sources() -> None:
    texts = {path: path.read_text() for path in [*PYTHON, *NATIVE]}
    parameters = oid_parameters([texts[path] for path in PYTHON])
    # Else the signatures were not understood.
    assert parameters["Column"] == parameters["ColumnSpec"] == parameters["TypeField"] == {1}
    found = []
    for path, text in texts.items():
        if path.suffix == ".py":
            bare = in_python(text, parameters)
        else:
            bare = in_native(text, "//" if path.suffix == ".hpp" else "#")
        for line, oid in bare:
            what = f"the oid of {NAME_OF_OID[oid]}" if oid in NAME_OF_OID else "FIRST_USER_OID"
            found.append(
                f"{path.relative_to(ROOT)}:{line}: {oid} is {what}: take it from builtin_types by name"
            )
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("A = 1083", [1083]),
        ("Column('id', 23)", [23]),
        ("pgo.Column('id', typmod=23, type_oid=25)", [25]),
        ("f(of=1007)", [1007]),
        ("if column.type_oid == 16: pass", [16]),
        ("if oid in (20, 21): pass", [20, 21]),
        ("if oid >= 10_000: pass", [10_000]),
        ("if cursor.description[0].type_code == 25: pass", [25]),
        ("_ELEMENT_OIDS = {'x': 26}", [26]),
        ("KNOWN = {16: ('bool', 7)}", [16]),
        ("KNOWN = {16: 'bool', 17: 'other'}", [16]),
        ("ROWS = [('int4', 23), ('_bool', 1000), ('bool', 1000)]", [23, 1000, 1000]),
        ("list_to_binary(23, items)", [23]),
        ("cache = lru_cache(maxsize=4096)\nseconds = milliseconds / 1000", []),
        ("width, n = 16, 10_000\nif size > 16 or void == 16: pass", []),
        ("'''>>> Column('id', 23)'''", []),
        ("if 16 <= version: oid = 0", []),
    ],
)  # fmt: skip
def test_what_counts_as_bare_in_python(code: str, expected: list[int]) -> None:
    parameters = {"Column": {1}, "list_to_binary": {0}}
    found = [each.oid for each in in_python(code, parameters)]
    assert found == sorted(set(expected), key=expected.index)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("return 1700;", [1700]),
        ('{"oidvector", print_vector<uint32_t, 26>},', [26]),
        ('{"int2vector", print_vector<int16_t, 21>},', [21]),
        ('{"uuid_bytes", Layout::FIXED, 16, read},', []),
        ("if (element_oid == 23) return;", [23]),
        ("size_t LONGEST_TID = 18, LONGEST_OID = 10;", []),
        ("static void f() { return 16 * 1000; }  // 1700", []),
        ("x = 0x1700; y = 1.1700; z = 1'700;", []),
    ],
)
def test_what_counts_as_bare_in_cpp(code: str, expected: list[int]) -> None:
    assert [each.oid for each in in_native(code, "//")] == expected
