"""Names as SQL writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_fast.names import parse_qualified_name, quote_identifier, quote_qualified_name

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


def test_only_the_letters_that_sql_folds_are_folded() -> None:
    assert parse_qualified_name("Public.ÉTÉ") == ("public", "ÉtÉ")
