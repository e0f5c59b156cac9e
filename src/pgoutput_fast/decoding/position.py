"""Positions in the committed changes of a slot: where a reader stopped and will resume."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering

from pgoutput_fast.protocol.limits import LAST_INT64
from pgoutput_fast.protocol.lsn import format_lsn, parse_lsn

__all__ = ["Position", "PositionError"]


class PositionError(ValueError):
    """A stream lacks changes that were delivered before the position at which a reader resumes."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """A position in the committed changes of a slot, from `Decoded.position` and for `follow(after=)`.

    It does not depend on how the server sends a transaction: streamed or not, in any segments, for the first time or
    again. Positions of one slot are ordered. Store `str(position)`, a text without spaces, with the changes.

    Attributes:
        commit_lsn: LSN of the last commit; 0 before the first one.
        changes: number of changes of that transaction before this position. A truncate of several tables counts once.
            After a whole transaction: the number of changes delivered, for information.
        slot_lsn: a slot that resumes at this LSN or an earlier one sends everything after this position. None within a
            transaction: the slot must still have the transaction.
        message_lsn: LSN of the last logical message that belongs to no transaction; 0 for none.
        last_message_lsn: within a transaction, LSN of the last logical message after the last change; 0 for none.

    >>> position = Position.parse("0/1B0D988:40000")
    >>> position.commit_lsn, position.changes, position.slot_lsn
    (28367240, 40000, None)
    >>> whole = Position.parse("0/1B0D988:102675:0/1B0D9C0")
    >>> position < whole, str(whole)
    (True, '0/1B0D988:102675:0/1B0D9C0')
    """

    commit_lsn: int
    changes: int = 0
    slot_lsn: int | None = None
    message_lsn: int = 0
    last_message_lsn: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """The inverse of `str`.

        Raises:
            ValueError: if the text is not a position.
            TypeError: for anything but a text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a position as text is a str, not a {type(text).__name__}")
        parts = text.split(":")
        try:
            if not 2 <= len(parts) <= 5 or not (parts[1].isascii() and parts[1].isdigit()):
                raise ValueError
            commit_lsn, *lsns = (parse_lsn(part) if part else None for part in (parts[0], *parts[2:]))
            slot_lsn, message_lsn, last_message_lsn = [*lsns, None, None, None][:3]
            changes = int(parts[1])
            if commit_lsn is None or changes > LAST_INT64:
                raise ValueError
        except ValueError:
            raise ValueError(
                "not a position: it must be the text that str(decoded.position) gave, such as '0/1B0D988:17'"
            ) from None
        return cls(commit_lsn, changes, slot_lsn, message_lsn or 0, last_message_lsn or 0)

    def __str__(self) -> str:
        lsns = (self.slot_lsn, self.message_lsn or None, self.last_message_lsn or None)
        parts = [format_lsn(self.commit_lsn), str(self.changes)]
        parts += ["" if lsn is None else format_lsn(lsn) for lsn in lsns]
        return ":".join(parts).rstrip(":")

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, ...]:
        if self.slot_lsn is None:
            return self.commit_lsn, 0, self.changes, self.last_message_lsn, self.message_lsn
        return self.commit_lsn, 1, self.slot_lsn, self.message_lsn
