"""SQL of the source: a name without a schema is looked for where anybody may have planted one. None is sent so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.paths import SOURCE
from support.sql import FILES, statements

# Its statements have operators without a schema, and are sent behind this.
HAS_OWN_PATH = {"pgoutput_fast/demo/shop.py": "SET search_path = pg_catalog"}
# Their statements go to DuckDB, where nobody else has a schema; and the style of a page is none.
FOR_OTHERS = {
    "pgoutput_fast/cli/targets.py",
    "pgoutput_fast/cli/views.py",
    "pgoutput_fast/demo/mirrored.py",
    "pgoutput_fast/demo/page.py",
    "pgoutput_fast/demo/run.py",
    "pgoutput_fast/tables/duckdb.py",
    "pgoutput_fast/tables/ducklake.py",
}

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<text>[eE]?'(?:[^']|'')*')
    | (?P<operand>%s|%\(\w+\)s|\d+(?:\.\d+)?)
    | (?P<qualified>OPERATOR\(pg_catalog\.[^)]+\))
    | (?P<operator>OPERATOR\([^)]*\)|[-+*/<>=~!@\#%^&|`?]+)
    | (?P<name>(?:\w+|"[^"]*")(?:\.(?:\w+|"[^"]*"|\*))*)
    | (?P<cast>::)
    | (?P<mark>.)
    """,
    re.VERBOSE,
)
# What may stand before a parenthesis, or before a text, and is no function or type.
_WORDS = {
    "all",
    "and",
    "any",
    "array",
    "as",
    "by",
    "coalesce",
    "copy",
    "else",
    "exists",
    "extract",
    "from",
    "greatest",
    "in",
    "join",
    "lateral",
    "least",
    "not",
    "on",
    "or",
    "over",
    "rows",
    "row",
    "select",
    "set",
    "snapshot",
    "stdout",
    "then",
    "to",
    "union",
    "using",
    "values",
    "when",
    "where",
    "with",
    "within",
}
# An alias, a table, or a name of WITH: what follows in parentheses are columns.
_NAMED_BEFORE = ("as", "recursive", "into", "table", ")")
# These words stand for an operator that is looked for along the search path.
_HIDDEN_OPERATORS = {
    "in", "like", "ilike", "similar", "between", "nullif", "overlaps", "natural", "cast", "collate", "using"
}  # fmt: skip
# `pgoutput_fast.postgres.published` puts a WITH before some statements.
_BEFORE_STATEMENTS = (
    "pub",
    "publishable",
    "named",
    "below",
    "within",
    "excepted",
    "published",
    "money",
    "above",
)
_RELATION_WORDS = (*_BEFORE_STATEMENTS, "filled_in", "lateral", "rows", "only", "select", "stdout")


def tokens_of(sql: str) -> list[tuple[str, str, int]]:
    """(kind, text, line) of each token; `OPERATOR(...)` is one, of kind operator unless its schema is pg_catalog."""
    # What a text is filled with is a name or an expression.
    sql = re.sub(r"(?<!\.)\{\w*\}", " filled_in ", re.sub(r"\.\{\w*\}", ".filled_in", sql))
    sql = re.sub(r"OPERATOR\s*\(\s*([^)\s]*)\s*\)", r" OPERATOR(\1) ", sql)
    return [
        (str(found.lastgroup), found.group(), sql.count("\n", 0, found.start()))
        for found in _TOKEN.finditer(sql)
        if found.lastgroup != "space"
    ]


def unqualified(sql: str) -> list[tuple[int, str]]:
    """(line, what) of all that is looked for along the search path."""
    tokens = tokens_of(sql)
    made = set(re.findall(r"\bWITH\s+(?:RECURSIVE\s+)?(\w+)", sql))
    sets = re.match(r"\s*(SET|ALTER)\b", sql) is not None
    found = []
    nothing = ("mark", "", 0)
    for previous, (kind, text, line), following in zip(
        [nothing, *tokens], tokens, [*tokens[1:], nothing], strict=False
    ):
        before, word, after = previous[1].lower(), text.lower(), following[1]
        if kind == "name":
            named = word in _WORDS or before in _NAMED_BEFORE or word in made
            if after == "(" and not named and not word.startswith("pg_catalog."):
                found.append((line, f"function {text}"))
            if after.endswith("'") and word not in _WORDS and word != "filled_in":
                found.append((line, f"type {text}"))
            if word in _HIDDEN_OPERATORS and not (word == "in" and after != "("):
                found.append((line, f"operator behind {text}"))
            if word == "case" and after.lower() != "when":
                found.append((line, "operator behind CASE x WHEN"))
            if word == "from" and before == "distinct":
                found.append((line, "operator behind IS DISTINCT FROM"))
            is_relation = before in ("from", "join", "into", "update", "only", "table")
            if is_relation and "." not in text and word not in made and word not in _RELATION_WORDS:
                found.append((line, f"relation {text}"))
        elif kind == "operator":
            all_columns = text == "*" and before in ("(", "select", ",")
            sign = (
                text == "-"
                and following[0] == "operand"
                and ((previous[0] in ("mark", "qualified") and before not in (")", "]")) or before in _WORDS)
            )
            if not (all_columns or sign or (sets and text == "=")):
                found.append((line, f"operator {text}"))
        elif kind == "cast" and not after.startswith("pg_catalog."):
            found.append((line, f"type {after}"))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_all_that_a_query_calls_has_its_schema(path: Path) -> None:
    name = str(path.relative_to(SOURCE))
    if name in FOR_OTHERS:
        return
    if name in HAS_OWN_PATH:
        assert HAS_OWN_PATH[name] in path.read_text()
        return
    found = [
        f"{name}:{first + line}: {what} without pg_catalog"
        for first, text in statements(path)
        for line, what in unqualified(text)
    ]
    assert not found, "\n".join(found)


def test_the_queries_are_found() -> None:
    """Else the test above would hold of a source that it cannot read."""
    found = [text for path in FILES for _, text in statements(path)]
    for known in (
        "FROM pg_catalog.pg_replication_slots s",
        "pg_logical_slot_peek_binary_changes",
        "enumsortorder",
    ):
        assert any(known in text for text in found), known
    assert len(found) > 40


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT to_json(s) FROM pg_catalog.pg_class s", ["function to_json"]),
        ("SELECT pg_catalog.to_json(s) ->> 'a'", ["operator ->>"]),
        ("SELECT 1, count(*)", ["function count"]),
        ("SELECT 1 WHERE a = 1", ["operator ="]),
        ("SELECT 1 WHERE a OPERATOR(public.=) 1", ["operator OPERATOR(public.=)"]),
        ("SELECT 1 WHERE a IN (1, 2)", ["operator behind IN"]),
        ("SELECT 1 WHERE a LIKE 'x'", ["operator behind LIKE", "type LIKE"]),
        ("SELECT CASE a WHEN 1 THEN 2 END", ["operator behind CASE x WHEN"]),
        ("SELECT NULLIF(a, 1)", ["function NULLIF", "operator behind NULLIF"]),
        ("SELECT a IS DISTINCT FROM pg_catalog.b", ["operator behind IS DISTINCT FROM"]),
        ("SELECT 1 FROM pg_catalog.a JOIN pg_catalog.b USING (oid)", ["operator behind USING"]),
        ("SELECT '1'::int8", ["type int8"]),
        ("SELECT date '2000-01-01'", ["type date"]),
        ("SELECT a FROM pg_class", ["relation pg_class"]),
        ("SELECT a - 1, -1", ["operator -"]),
        ("SELECT *, a.* FROM {} WHERE b OPERATOR(pg_catalog.=) -1 AND NOT c", []),
        ("SELECT f FROM pg_catalog.g(%s::pg_catalog.text[]) AS u (f), LATERAL (SELECT 1) x (y)", []),
        ("SELECT 1 FROM pg_catalog.{name} r WHERE r.{key} OPERATOR(pg_catalog.=) {value}{more}", []),
        ("SELECT 1 FROM pg_catalog.{name} r WHERE r.{key} = {value}", ["operator ="]),
        ("WITH RECURSIVE b (o) AS (SELECT 1) SELECT pg_catalog.count(*) FROM b", []),
    ],
)
def test_what_is_unqualified(sql: str, expected: list[str]) -> None:
    assert sorted(what for _, what in unqualified(sql)) == sorted(expected)
