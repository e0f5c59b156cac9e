"""Which metadata columns a caller asks for."""

from __future__ import annotations

from typing import Any

import pytest

from pgoutput_fast.schema.metadata_columns import METADATA_COLUMNS, choose_metadata


def test_all_and_none() -> None:
    assert choose_metadata("all", "_") == tuple(f"_{name}" for name, _ in METADATA_COLUMNS)
    assert choose_metadata((), "_") == choose_metadata([], "_") == ()


@pytest.mark.parametrize("prefix", ["_", "", "pg ", "sub"])
def test_names_as_they_appear_and_without_the_prefix(prefix: str) -> None:
    there = [prefix + name for name, _ in METADATA_COLUMNS]
    for name in ("seq", "commit_timestamp", "change_type"):
        assert choose_metadata([name], prefix) == choose_metadata([prefix + name], prefix) == (prefix + name,)
    assert choose_metadata(there[::-1], prefix) == tuple(there[::-1])


def test_a_name_of_the_result_comes_first() -> None:
    """With this prefix, `subxid` is the xid. The other column has only its full name."""
    assert choose_metadata(["subxid", "subsubxid"], "sub") == ("subxid", "subsubxid")


@pytest.mark.parametrize("text", ["_seq", "none", "ALL", "", b"all"])
def test_a_text_is_not_a_list(text: Any) -> None:
    with pytest.raises(TypeError, match="metadata must be a list of names"):
        choose_metadata(text, "_")


def test_wrong_names() -> None:
    with pytest.raises(
        KeyError, match=r"no metadata column 'id', 'SEQ'; there is _change_type, _seq, _lsn, .*"
    ):
        choose_metadata(["seq", "id", "SEQ"], "_")
    with pytest.raises(ValueError, match="names a column twice: _lsn, _seq, _lsn"):
        choose_metadata(["lsn", "seq", "_lsn"], "_")
