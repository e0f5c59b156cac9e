"""Where a stream stands: what a decoder must remember to go on in another process."""

from __future__ import annotations

import json
from typing import Any

from pgoutput_fast.catalog import Catalog, parsed_json
from pgoutput_fast.held import Held

__all__ = ["StreamState"]

FORMAT = 1


class StreamState:
    """An immutable snapshot of a stream's state, with the catalog that it refers to.

    It holds the next ordinal, the transaction or stream block that is open, streamed and prepared transactions, what
    was learnt inside of them, and which version each relation oid stands for. Pickles, and goes to JSON and back.

    >>> StreamState.from_json(StreamState().to_json()).next_seq
    0
    """

    __slots__ = ("_catalog", "_held", "_values")

    def __init__(
        self,
        values: dict[str, Any] | None = None,
        catalog: Catalog | None = None,
        held: Held | None = None,
    ) -> None:
        self._values = values
        self._catalog = catalog if catalog is not None else Catalog()
        self._held = held

    def with_held(self, held: Held) -> StreamState:
        """The same state, with what the committed view holds back."""
        return StreamState(self._values, self._catalog, held)

    @property
    def held(self) -> Held | None:
        """What waits for its commit in the committed view; None if nothing does."""
        return self._held or None

    @property
    def spill_files(self) -> list[str]:
        """Names of the files, in the decoder's `Options.spill_directory`, that are needed to go on from this state."""
        return [] if self._held is None else self._held.names()

    @property
    def catalog(self) -> Catalog:
        """The relation versions known so far."""
        return self._catalog

    @property
    def next_seq(self) -> int:
        """Ordinal of the message that comes next."""
        return 0 if self._values is None else int(self._values["next_seq"])

    @property
    def values(self) -> dict[str, Any] | None:
        """The state as JSON values, None for that of a stream's beginning. Not to be changed."""
        return self._values

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions whose end has not come, streamed and prepared ones among them, in their order."""
        values = self._values or {}
        found = [*values.get("streamed", ()), *values.get("prepared", ())]
        if values.get("current"):
            found.append(values["current"])  # in a stream block it has no key of its own
        return sorted(each["txn"] for each in found if each["txn"] is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamState) and self._document(save=False) == other._document(save=False)

    def __hash__(self) -> int:
        return hash(self.next_seq)

    def __repr__(self) -> str:
        return f"StreamState(next_seq={self.next_seq}, {self._catalog!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (StreamState.from_json, (self.to_json(),))

    def to_json(self) -> str:
        """As a JSON document; equal states give equal documents. Pickling does the same.

        Spill files that it names stay from now on, until a later state has been saved and the decoder has gone on.
        """
        return json.dumps(self._document(save=True), ensure_ascii=False)

    def _document(self, *, save: bool) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "state": self._values,
            "catalog": self._catalog.to_dict(),
            "held": None if self._held is None else self._held.to_dict(save=save),
        }

    @classmethod
    def from_json(cls, text: str) -> StreamState:
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is not a state of a known format. What only a decoder can tell, `Decoder` does.
        """
        document = parsed_json(text, "stream state")
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(
                f"not a stream state of format {FORMAT}: another version of pgoutput_fast wrote it"
            )
        try:
            held, values = document["held"], document["state"]
            if values is not None and type(values["next_seq"]) is not int:
                raise TypeError("its next ordinal is none")
            state = cls(
                values,
                Catalog.from_dict(document["catalog"]),
                None if held is None else Held.from_dict(held),
            )
            if not all(type(txn) is int for txn in state.open_txns):
                raise TypeError("a transaction's key is none")
            return state
        except KeyError as problem:
            raise ValueError(f"not a stream state: {problem} is missing") from None
        except (TypeError, AttributeError, OverflowError) as problem:
            raise ValueError(f"not a stream state: {problem}") from None
