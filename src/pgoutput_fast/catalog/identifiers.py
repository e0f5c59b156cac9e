"""Quotes and parses SQL identifiers."""

from __future__ import annotations

import re
import string

__all__ = [
    "parse_qualified_name",
    "qualified_like",
    "quote_identifier",
    "quote_qualified_name",
    "quoted",
    "split_names",
]

_LISTED = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^",\s](?:[^,]*[^,\s])?)?)\s*(?=,|$)')

# Without $: quote_ident quotes names with $, although SQL does not require it.
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
# SQL folds only these letters to lower case: É and é differ.
_FOLDED = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
_PART = re.compile(r'"((?:[^"]|"")+)"|([^\W\d][\w$]*)')

# The key words of PostgreSQL 18 that quote_ident quotes: reserved ones, and those that cannot be unquoted type names.
_KEYWORDS = frozenset(
    [
        "all",
        "analyse",
        "analyze",
        "and",
        "any",
        "array",
        "as",
        "asc",
        "asymmetric",
        "authorization",
        "between",
        "bigint",
        "binary",
        "bit",
        "boolean",
        "both",
        "case",
        "cast",
        "char",
        "character",
        "check",
        "coalesce",
        "collate",
        "collation",
        "column",
        "concurrently",
        "constraint",
        "create",
        "cross",
        "current_catalog",
        "current_date",
        "current_role",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "dec",
        "decimal",
        "default",
        "deferrable",
        "desc",
        "distinct",
        "do",
        "else",
        "end",
        "except",
        "exists",
        "extract",
        "false",
        "fetch",
        "float",
        "for",
        "foreign",
        "freeze",
        "from",
        "full",
        "grant",
        "greatest",
        "group",
        "grouping",
        "having",
        "ilike",
        "in",
        "initially",
        "inner",
        "inout",
        "int",
        "integer",
        "intersect",
        "interval",
        "into",
        "is",
        "isnull",
        "join",
        "json",
        "json_array",
        "json_arrayagg",
        "json_exists",
        "json_object",
        "json_objectagg",
        "json_query",
        "json_scalar",
        "json_serialize",
        "json_table",
        "json_value",
        "lateral",
        "leading",
        "least",
        "left",
        "like",
        "limit",
        "localtime",
        "localtimestamp",
        "merge_action",
        "national",
        "natural",
        "nchar",
        "none",
        "normalize",
        "not",
        "notnull",
        "null",
        "nullif",
        "numeric",
        "offset",
        "on",
        "only",
        "or",
        "order",
        "out",
        "outer",
        "overlaps",
        "overlay",
        "placing",
        "position",
        "precision",
        "primary",
        "real",
        "references",
        "returning",
        "right",
        "row",
        "select",
        "session_user",
        "setof",
        "similar",
        "smallint",
        "some",
        "substring",
        "symmetric",
        "system_user",
        "table",
        "tablesample",
        "then",
        "time",
        "timestamp",
        "to",
        "trailing",
        "treat",
        "trim",
        "true",
        "union",
        "unique",
        "user",
        "using",
        "values",
        "varchar",
        "variadic",
        "verbose",
        "when",
        "where",
        "window",
        "with",
        "xmlattributes",
        "xmlconcat",
        "xmlelement",
        "xmlexists",
        "xmlforest",
        "xmlnamespaces",
        "xmlparse",
        "xmlpi",
        "xmlroot",
        "xmlserialize",
        "xmltable",
    ]
)


def quote_identifier(name: str) -> str:
    """The name as an SQL identifier, quoted if needed, like the server's quote_ident.

    >>> quote_identifier("orders"), quote_identifier("Order Lines"), quote_identifier("user")
    ('orders', '"Order Lines"', '"user"')
    """
    if _PLAIN.fullmatch(name) and name not in _KEYWORDS:
        return name
    return quoted(name)


def quoted(name: str) -> str:
    """The name as an SQL identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def split_names(text: str) -> list[str]:
    """Splits a text into names at its commas.

    A name in double quotes may have commas, and double quotes written twice. Any other name is used as written, without
    surrounding blanks.

    Raises:
        ValueError: for unterminated quotes, or quotes that end within a name.

    >>> split_names('shop, "b,c","so ""called"" one"')
    ['shop', 'b,c', 'so "called" one']
    """
    names, at = [], 0
    while at <= len(text):
        match = _LISTED.match(text, at)
        if match is None:
            raise ValueError(
                "separate the names with commas, and put a name that has a comma itself in double quotes, such as "
                'shop,"b,c"'
            )
        quoted, plain = match.groups()
        if quoted is not None:
            names.append(quoted.replace('""', '"'))
        elif plain:
            names.append(plain)
        at = match.end() + 1
    return names


def quote_qualified_name(namespace: str, name: str) -> str:
    """Schema and relation joined by a dot, quoted if needed."""
    return f"{quote_identifier(namespace)}.{quote_identifier(name)}"


def qualified_like(text: str) -> str:
    """The probable qualified name for a text that is not one.

    >>> qualified_like("public.Legacy Data"), qualified_like("orders"), qualified_like('"Order Lines"')
    ('public."Legacy Data"', 'public.orders', 'public."Order Lines"')
    """
    if _PART.fullmatch(text):
        return f"public.{text}"
    schema, dot, name = text.partition(".")
    return quote_qualified_name(schema, name) if dot else quote_qualified_name("public", text)


def parse_qualified_name(text: str) -> tuple[str, str] | None:
    """(schema, relation) of a qualified name, None for other text. Parts without quotes become lower case, as in SQL.

    >>> parse_qualified_name('public."Order Lines"'), parse_qualified_name("Public.Orders")
    (('public', 'Order Lines'), ('public', 'orders'))
    """
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            return None
        quoted, plain = match.groups()
        parts.append(plain.translate(_FOLDED) if quoted is None else quoted.replace('""', '"'))
        at = match.end()
        if at == len(text):
            break
        if text[at] != ".":
            return None
        at += 1
    return (parts[0], parts[1]) if len(parts) == 2 else None
