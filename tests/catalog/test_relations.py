"""Relation versions and catalogs."""

from __future__ import annotations

import hashlib
import pickle

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import Catalog, Column, Relation
from pgoutput_fast.encode import ColumnSpec, RelationSpec, encode_relation, encode_type


def spec(oid: int = 16384, name: str = "t", *columns: str) -> RelationSpec:
    return RelationSpec(oid, "public", name, tuple(ColumnSpec(c, 23) for c in columns or ("id",)))


def learnt(*payloads: bytes) -> Catalog:
    decoder = pgo.Decoder()
    decoder.decode(list(payloads))
    return decoder.catalog


def test_a_version_is_the_hash_of_the_body() -> None:
    payload = encode_relation(spec())
    (relation,) = learnt(payload).relations
    assert relation.version == int.from_bytes(hashlib.sha256(payload[1:]).digest()[:8], "big", signed=True)
    assert relation.wire_body() == payload[1:]


def test_an_identical_relation_is_no_news_and_another_is() -> None:
    catalog = learnt(
        encode_relation(spec()), encode_relation(spec()), encode_relation(spec(16384, "t", "id", "more"))
    )
    assert [len(r.columns) for r in catalog.relations] == [1, 2]
    assert len(catalog.named("public.t")) == len(catalog.named(16384)) == 2


def test_names_that_are_not_there() -> None:
    with pytest.raises(KeyError, match=r"public\.t"):
        learnt(encode_relation(spec())).named("public.other")
    with pytest.raises(KeyError, match="none"):
        Catalog().named(5)


def test_catalogs_travel() -> None:
    catalog = learnt(
        encode_type(20001, "public", "mood"),
        encode_relation(RelationSpec(1, "", 'a"b', (ColumnSpec("m", 20001),))),
    )
    assert catalog.relations[0].columns[0].type_name == "mood"
    assert catalog.relations[0].qualified_name == 'pg_catalog."a""b"'
    for again in (Catalog.from_json(catalog.to_json()), pickle.loads(pickle.dumps(catalog))):
        assert again == catalog
        assert again.fingerprint() == catalog.fingerprint()
    with pytest.raises(ValueError, match="format"):
        Catalog.from_json("{}")


def test_types_are_in_the_fingerprint_but_not_in_the_version() -> None:
    relation = encode_relation(RelationSpec(1, "s", "t", (ColumnSpec("m", 20001),)))
    a, b = learnt(relation), learnt(encode_type(20001, "public", "mood"), relation)
    assert a.relations[0].version == b.relations[0].version
    assert a.fingerprint() != b.fingerprint()


def test_merging() -> None:
    a, b = (
        Catalog([Relation(1, 11, "s", "a", "d", ())]),
        Catalog([Relation(2, 22, "s", "b", "d", (Column("x", 23),))]),
    )
    assert [r.oid for r in a.merged(b).relations] == [1, 2]
    assert a.merged(b).get(22) == b.relations[0]
    assert a.get(22) is None
