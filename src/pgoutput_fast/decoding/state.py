"""Where a stream stands: what a decoder must remember to go on in another process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.catalog.relations import Catalog, Relation, parsed_json
from pgoutput_fast.committed import reorder_buffer_json
from pgoutput_fast.committed.reorder_buffer import ReorderBuffer
from pgoutput_fast.schema.options import Options

if TYPE_CHECKING:
    from pgoutput_fast._core.tagging.state_json import Described

__all__ = ["News", "StreamState", "native_decoder", "state_of"]

FORMAT = 1


@dataclass(frozen=True)
class News:
    """What Relation and Type messages said outside of streams, of some oids.

    Attributes:
        relations: {oid: [version, seq]}, the version's id as a string, None if it could not be read.
        types: {oid: [namespace, name, seq]}.
    """

    relations: dict[str, list[Any]]
    types: dict[str, list[Any]]


class StreamState:
    """An immutable snapshot of a stream's state, with the catalog that it refers to.

    It holds the next ordinal, the transaction or stream block that is open, streamed and prepared transactions, what
    was learnt inside of them, and which version each relation oid stands for. Pickles, and goes to JSON and back.

    >>> StreamState.from_json(StreamState().to_json()).next_seq
    0
    """

    __slots__ = ("_catalog", "_described", "_reorder_buffer", "_values")

    def __init__(
        self,
        values: dict[str, Any] | None = None,
        catalog: Catalog | None = None,
        reorder_buffer: ReorderBuffer | None = None,
        *,
        described: Described | None = None,
    ) -> None:
        # What was said outside of streams may be large: it becomes values when it is asked for.
        self._described = described
        self._values = values
        self._catalog = catalog if catalog is not None else Catalog()
        self._reorder_buffer = reorder_buffer

    def with_reorder_buffer(self, reorder_buffer: ReorderBuffer) -> StreamState:
        """The same state, with what the committed view holds back."""
        return StreamState(self._values, self._catalog, reorder_buffer, described=self._described)

    @property
    def reorder_buffer(self) -> ReorderBuffer | None:
        """What waits for its commit in the committed view; None if nothing does."""
        return self._reorder_buffer or None

    @property
    def spill_files(self) -> list[str]:
        """Names of the files, in the decoder's `Options.spill_directory`, that are needed to go on from this state."""
        return [] if self._reorder_buffer is None else self._reorder_buffer.names()

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
        if self._values is not None and self._described is not None and "relations" not in self._values:
            said = {"relations": self._described.relations(), "types": self._described.types()}
            self._values = {**self._values, **said}
        return self._values

    @property
    def position(self) -> dict[str, Any] | None:
        """`values` without `relations` and `types`: what does not grow with the number of tables."""
        if self._values is None:
            return None
        return {name: value for name, value in self._values.items() if name not in ("relations", "types")}

    def news_since(self, before: StreamState) -> News | None:
        """What was said outside of streams since `before`, at the cost of what is new.

        None if they are not states of one decoder: then nothing but all of it tells.
        """
        if self._described is None or before._described is None:
            return None
        changed = self._described.changed_since(before._described)
        return None if changed is None else News(*changed)

    def in_order(self, versions: Iterable[int]) -> list[Relation]:
        """The relation versions of these ids, those that are known here, as they were described first."""
        if self._described is not None:
            return self._described.in_order(versions)
        wanted = set(versions)
        return [relation for relation in self._catalog.relations if relation.version in wanted]

    @property
    def scoped_versions(self) -> set[int]:
        """Ids of the relation versions that were described inside of transactions which are open or prepared."""
        values = self._values or {}
        scopes = [*values.get("streamed", ()), *values.get("prepared", ()), values.get("current") or {}]
        said = [version for scope in scopes for _, _, version, _ in scope.get("relations", ())]
        return {int(version) for version in said if version is not None}

    def forgetting(self, keep: Iterable[int] = ()) -> StreamState:
        """The state without what was said outside of transactions that are open or prepared.

        For a session's beginning: the server says it again before it sends a change.

        Args:
            keep: ids of relation versions that the catalog has all the same.
        """
        if self._values is None:
            return self
        kept = self.in_order({*keep, *self.scoped_versions})
        values = {**(self.position or {}), "relations": {}, "types": {}}
        return StreamState(values, Catalog(kept, self._catalog.types), self._reorder_buffer)

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
            "state": self.values,
            "catalog": self._catalog.to_dict(),
            "held": None
            if self._reorder_buffer is None
            else reorder_buffer_json.to_dict(self._reorder_buffer, save=save),
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
            reorder_buffer, values = document["held"], document["state"]
            if values is not None and type(values["next_seq"]) is not int:
                raise TypeError("its next ordinal is not an integer")
            state = cls(
                values,
                Catalog.from_dict(document["catalog"]),
                None if reorder_buffer is None else reorder_buffer_json.from_dict(reorder_buffer),
            )
            if not all(type(txn) is int for txn in state.open_txns):
                raise TypeError("a transaction's key is not an integer")
            return state
        except KeyError as problem:
            raise ValueError(f"not a stream state: {problem} is missing") from None
        except (TypeError, AttributeError, OverflowError) as problem:
            raise ValueError(f"not a stream state: {problem}") from None


def native_decoder(
    options: Options, state: StreamState | None = None, catalog: Catalog | None = None
) -> NativeDecoder:
    """A native decoder that goes on from a state, the stream's beginning if there is none.

    Args:
        catalog: relation versions to know beside those of the state.

    Raises:
        ValueError: if the state is not what a decoder gave.
    """
    known = state.catalog if state is not None else Catalog()
    if catalog is not None:
        known = known.merged(catalog)
    return NativeDecoder(options, known, state.values if state is not None else None)


def state_of(native: NativeDecoder) -> StreamState:
    """Where a native decoder stands."""
    values, described = native.state_values()
    return StreamState(values, native.catalog, described=described)
