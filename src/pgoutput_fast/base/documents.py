"""Untrusted JSON: files beside the data, footers, options."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

__all__ = ["parsed_json"]


def parsed_json(text: str | bytes, what: str = "document", *, decimals: bool = False) -> Any:
    """The values of a JSON document.

    Args:
        text: the document.
        what: names it, for the error.
        decimals: whether fractions are decimals, with all their digits.

    Raises:
        ValueError: if it is not JSON, or nested too deeply for any `what`.

    >>> parsed_json(b'{"lsn": 7}')
    {'lsn': 7}
    """
    try:
        return json.loads(text, parse_float=Decimal if decimals else None)
    except RecursionError:
        raise ValueError(f"not a {what}: it is nested too deeply") from None
