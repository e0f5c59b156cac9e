"""The mapping of extensions' types to Arrow types. `column_types.py` uses it."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import pyarrow as pa

__all__ = ["NEVER", "OF_EXTENSIONS", "TEXT_EXTENSIONS", "Form", "geoarrow"]

NEVER = sys.maxsize


class Form(NamedTuple):
    """The mapping of a type. The fields are those of `ColumnType`."""

    kernel: str
    arrow: pa.DataType
    binary_agrees_since: int = 0
    delimiter: str = ","


# Extension types whose binary form is their text, recognized by name alone.
TEXT_EXTENSIONS = frozenset({"citext"})
_ISN = ("ean13", "isbn", "isbn13", "ismn", "ismn13", "issn", "issn13", "upc")
# Types that only a live server identifies, by extension. The types of ltree have a version byte before their text, as
# jsonb does. Those of isn and seg have no binary form: they are text in binary rows, too.
OF_EXTENSIONS: dict[tuple[str, str], Form] = {
    ("cube", "cube"): Form("cube", pa.string(), binary_agrees_since=12),
    ("hstore", "hstore"): Form("hstore", pa.map_(pa.string(), pa.string())),
    **{("isn", name): Form("string", pa.string(), binary_agrees_since=NEVER) for name in _ISN},
    **{("ltree", name): Form("jsonb", pa.string()) for name in ("lquery", "ltree", "ltxtquery")},
    **{("postgis", name): Form("geometry", pa.binary(), delimiter=":") for name in ("geography", "geometry")},
    ("seg", "seg"): Form("string", pa.string(), binary_agrees_since=NEVER),
    # Lists, even if the modifier gives the number of elements: Delta, Iceberg and Spark have no lists of fixed size,
    # and no floats of 16 bits.
    ("vector", "halfvec"): Form("halfvec", pa.list_(pa.float32())),
    ("vector", "sparsevec"): Form("sparsevec", pa.string()),
    ("vector", "vector"): Form("vector", pa.list_(pa.float32())),
}


def geoarrow(name: str, typmod: int) -> tuple[tuple[str, str], ...]:
    """The metadata of GeoArrow for a geometry or a geography: its SRID if all values have it, and its edges."""
    modifier = max(typmod, 0) >> 8  # without the bits of the kind
    srid = (modifier & 0xFFFFF) - (modifier & 0x100000)
    if name == "geography" and srid == 0:
        srid = 4326
    about = {"crs": str(srid), "crs_type": "srid"} if srid > 0 else {}
    if name == "geography":
        about["edges"] = "spherical"
    known = (("ARROW:extension:name", "geoarrow.wkb"),)
    return (*known, ("ARROW:extension:metadata", json.dumps(about))) if about else known
