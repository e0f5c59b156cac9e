"""What was measured of a peer."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timing import Measured

__all__ = ["Figures", "Outcome"]


@dataclass(frozen=True)
class Figures:
    """What a peer took for one corpus, in full: what was measured on a share is scaled up.

    Attributes:
        cpu, wall: seconds of each round.
        nbytes: of what it reads.
        messages: how many there are, or rows, for those that read something else.
        resident_before, resident_peak: bytes of memory with its input read, and the most while decoding.
    """

    cpu: Measured
    wall: Measured
    nbytes: float
    messages: float
    resident_before: int
    resident_peak: int


# Figures, or why there are none.
Outcome = Figures | str
