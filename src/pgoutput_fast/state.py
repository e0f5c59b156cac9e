"""Where a stream stands: what a decoder must remember to go on in another process."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from pgoutput_fast.catalog import Catalog

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
        held: pa.Table | None = None,
    ) -> None:
        self._values = values
        self._catalog = catalog if catalog is not None else Catalog()
        self._held = held

    def with_held(self, held: pa.Table) -> StreamState:
        """The same state, with the tagged rows that the committed view holds back."""
        return StreamState(self._values, self._catalog, held if held.num_rows else None)

    @property
    def held(self) -> pa.Table | None:
        """Tagged rows of transactions whose fate is not known yet; None if there are none."""
        return self._held

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamState) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        return f"StreamState(next_seq={self.next_seq}, {self._catalog!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (StreamState.from_json, (self.to_json(),))

    def to_json(self) -> str:
        """As a JSON document; equal states give equal documents."""
        document = {
            "format": FORMAT,
            "state": self._values,
            "catalog": self._catalog.to_dict(),
            "held": None if self._held is None else _table_to_text(self._held),
        }
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> StreamState:
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is not a state of a known format.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(
                f"not a stream state of format {FORMAT}: another version of pgoutput_fast wrote it"
            )
        try:
            held = document["held"]
            return cls(
                document["state"],
                Catalog.from_dict(document["catalog"]),
                None if held is None else _table_from_text(held),
            )
        except KeyError as problem:
            raise ValueError(f"not a stream state: {problem} is missing") from None


def _table_to_text(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return base64.b64encode(sink.getvalue()).decode("ascii")


def _table_from_text(text: str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()
