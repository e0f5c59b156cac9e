"""The figures of a peer."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.timing import Measured

__all__ = ["Figures", "Outcome"]


@dataclass(frozen=True)
class Figures:
    """The cost of one whole corpus for a peer. Figures from a share of the corpus are scaled up.

    Attributes:
        cpu, wall: seconds per round.
        nbytes: bytes of its input.
        messages: number of messages; number of rows for a peer that reads something else.
        resident_before, resident_peak: resident memory in bytes: after reading its input, and the peak while decoding.
    """

    cpu: Measured
    wall: Measured
    nbytes: float
    messages: float
    resident_before: int
    resident_peak: int


# Figures, or the reason why there are none.
Outcome = Figures | str
