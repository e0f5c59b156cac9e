"""Names as SQL writes them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast.catalog.identifiers import (
    parse_qualified_name,
    quote_identifier,
    quote_qualified_name,
    split_names,
)

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("orders", "orders"), ("_a1$", '"_a1$"'), ("Orders", '"Orders"'), ("order lines", '"order lines"'), ("1a", '"1a"'),
        ("user", '"user"'), ("select", '"select"'), ('a"b', '"a""b"'), ("naïve", '"naïve"'), ("a.b", '"a.b"'),
    ],
)  # fmt: skip
def test_quoting(name: str, quoted: str) -> None:
    assert quote_identifier(name) == quoted


@settings(deadline=None)
@given(NAMES, NAMES)
def test_what_is_quoted_reads_back(namespace: str, name: str) -> None:
    assert parse_qualified_name(quote_qualified_name(namespace, name)) == (namespace, name)


@pytest.mark.parametrize(
    "text", ["", "a", "a.b.c", "a.", ".b", 'a."b', 'a.""', "a b.c", "a.1b", 'a."b"c', "a..b"]
)
def test_no_qualified_name(text: str) -> None:
    assert parse_qualified_name(text) is None


def test_unquoted_names_are_folded() -> None:
    assert parse_qualified_name('PUBLIC."Order ""Lines"""') == ("public", 'Order "Lines"')


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("shop", ["shop"]),
        (" shop ,other,", ["shop", "other"]),
        ('a,"b,c"', ["a", "b,c"]),
        ('"b,c", Some Name', ["b,c", "Some Name"]),
        ('"so ""called""",x', ['so "called"', "x"]),
        ('so "called', ['so "called']),
        ("", []),
    ],
)
def test_names_with_commas_between(text: str, names: list[str]) -> None:
    assert split_names(text) == names


@settings(deadline=None)
@given(st.lists(NAMES, max_size=4))
def test_names_that_are_quoted_are_split_again(names: list[str]) -> None:
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    assert split_names(" , ".join(quoted)) == names


@pytest.mark.parametrize("text", ['"a', '"a"b', 'a,"b,c', '""'])
def test_quotes_that_do_not_end_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match='such as shop,"b,c"'):
        split_names(text)


def test_only_the_letters_that_sql_folds_are_folded() -> None:
    assert parse_qualified_name("Public.ÉTÉ") == ("public", "ÉtÉ")
