"""One thing that a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: `error`: the capture cannot run, or the server's own writers would fail; `warning`: something may be lost
            or cannot be told apart; `note`: something that is sent in another way than one may think.
        subject: what it is about: a setting, slot, publication or quoted table.
        problem: what is so.
        advice: what to do.
        stops: whether `Capture` refuses to begin: it could not run, or would miss changes without a word. Other errors
            do no harm to what is captured, or the server itself says whether they are in the way.
    """

    level: Level
    subject: str
    problem: str
    advice: str
    stops: bool = False

    def __str__(self) -> str:
        return f"{self.level}: {self.subject}: {self.problem}. {self.advice}."
