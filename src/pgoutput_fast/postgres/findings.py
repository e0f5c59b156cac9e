"""A finding of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes:
        level: `error`: the capture cannot run, or writes on the server would fail. `warning`: data may be lost or
            ambiguous. `note`: data are sent in an unexpected form.
        subject: a setting, slot, publication or quoted table.
        problem: the problem.
        advice: what to do.
        stops: whether `Capture` refuses to start, because it could not run or would silently miss changes. Other errors
            do not affect captured data, or the server itself reports them if they prevent the capture.
    """

    level: Level
    subject: str
    problem: str
    advice: str
    stops: bool = False

    def __str__(self) -> str:
        return f"{self.level}: {self.subject}: {self.problem}. {self.advice}."
