"""Damaged COPY streams: compares the snapshot reader with a slow reader and with the decoder of changes."""

from __future__ import annotations

import random
import traceback

from cells.nested import EVERY
from support.copying import check_mutated


def copies_failure(rng: random.Random) -> tuple[int, str | None]:
    """(number of mutated streams, the problem or None)."""
    for tried in range(10):
        cells = rng.choices([*EVERY.values()], k=rng.choice([0, 1, 2, 5, 20]))
        try:
            check_mutated(rng, cells, rng.choice(["raise", "quarantine"]))
        except Exception:
            return tried + 1, traceback.format_exc()
    return 10, None
