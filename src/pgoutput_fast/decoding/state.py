"""The state of a stream: all that a decoder needs to continue, also in another process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pgoutput_fast._core.rows.decode import NativeDecoder
from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.schema.options import Options
from pgoutput_fast.transactions import reorder_buffer_json
from pgoutput_fast.transactions.reorder_buffer import ReorderBuffer

if TYPE_CHECKING:
    from pgoutput_fast._core.tagging.state_json import Described

__all__ = ["News", "StreamState", "native_decoder", "state_of", "without_changes"]

STATE_FORMAT = 1


@dataclass(frozen=True)
class News:
    """The last Relation and Type messages outside of stream blocks, for some oids.

    Attributes:
        relations: {oid: [version, seq]}: the version's id as a string, None if the message could not be read.
        types: {oid: [namespace, name, seq]}.
    """

    relations: dict[str, list[Any]]
    types: dict[str, list[Any]]


class StreamState:
    """An immutable snapshot of a stream's state, with the catalog that it refers to.

    It has the next ordinal, the open transaction or stream block, the streamed and prepared transactions with the
    relations that they describe, and the current version of every relation. It can be pickled or converted to JSON.

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
        # There may be many descriptions outside of stream blocks, so `values` converts them to JSON lazily.
        self._described = described
        self._values = values
        self._catalog = catalog if catalog is not None else Catalog()
        self._reorder_buffer = reorder_buffer

    def with_reorder_buffer(self, reorder_buffer: ReorderBuffer) -> StreamState:
        """The same state, with the waiting changes of the committed view."""
        return StreamState(self._values, self._catalog, reorder_buffer, described=self._described)

    @property
    def reorder_buffer(self) -> ReorderBuffer | None:
        """The changes that wait for their commit in the committed view; None if there are none."""
        return self._reorder_buffer or None

    @property
    def spill_files(self) -> list[str]:
        """Names of the files in `Options.spill_directory` that a decoder needs to continue from this state."""
        return [] if self._reorder_buffer is None else self._reorder_buffer.names()

    @property
    def catalog(self) -> Catalog:
        """The relation versions known so far."""
        return self._catalog

    @property
    def next_seq(self) -> int:
        """Ordinal of the next message."""
        return 0 if self._values is None else int(self._values["next_seq"])

    @property
    def values(self) -> dict[str, Any] | None:
        """The state as JSON values (do not modify); None at the beginning of a stream."""
        if self._values is not None and self._described is not None and "relations" not in self._values:
            described = {"relations": self._described.relations(), "types": self._described.types()}
            self._values = {**self._values, **described}
        return self._values

    @property
    def position(self) -> dict[str, Any] | None:
        """`values` without `relations` and `types`: the part that does not grow with the number of tables."""
        if self._values is None:
            return None
        return {name: value for name, value in self._values.items() if name not in ("relations", "types")}

    def news_since(self, before: StreamState) -> News | None:
        """The descriptions outside of stream blocks that are new since `before`, at a cost proportional to these.

        None if the states are not of one decoder: compare the whole states instead.
        """
        if self._described is None or before._described is None:
            return None
        changed = self._described.changed_since(before._described)
        return None if changed is None else News(*changed)

    def in_order(self, versions: Iterable[int]) -> list[Relation]:
        """The known relation versions among these ids, in the order in which the stream first described them."""
        if self._described is not None:
            return self._described.in_order(versions)
        requested = set(versions)
        return [relation for relation in self._catalog.relations if relation.version in requested]

    @property
    def scoped_versions(self) -> set[int]:
        """Ids of the relation versions that open and prepared transactions describe."""
        values = self._values or {}
        scopes = [*values.get("streamed", ()), *values.get("prepared", ()), values.get("current") or {}]
        versions = [version for scope in scopes for _, _, version, _ in scope.get("relations", ())]
        return {int(version) for version in versions if version is not None}

    def forgetting(self, keep: Iterable[int] = ()) -> StreamState:
        """The state with only the descriptions of open and prepared transactions.

        For the beginning of a session: the server describes a relation again before it sends a change of it.

        Args:
            keep: ids of further relation versions to keep in the catalog.
        """
        if self._values is None:
            return self
        kept = self.in_order({*keep, *self.scoped_versions})
        values = {**(self.position or {}), "relations": {}, "types": {}}
        return StreamState(values, Catalog(kept, self._catalog.types), self._reorder_buffer)

    @property
    def open_txns(self) -> list[int]:
        """Keys of the transactions that have not ended, including streamed and prepared ones, in ascending order."""
        values = self._values or {}
        transactions = [*values.get("streamed", ()), *values.get("prepared", ())]
        if values.get("current"):
            transactions.append(values["current"])  # in a stream block its key is None
        return sorted(each["txn"] for each in transactions if each["txn"] is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamState) and self._document(save=False) == other._document(save=False)

    def __hash__(self) -> int:
        return hash(self.next_seq)

    def __repr__(self) -> str:
        return f"StreamState(next_seq={self.next_seq}, {self._catalog!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (StreamState.from_json, (self.to_json(),))

    def to_json(self) -> str:
        """The state as a JSON document: equal states give equal documents, and pickling uses it, too.

        The spill files that it names are kept until a later state is saved and the decoder has made another call.
        """
        return json.dumps(self._document(save=True), ensure_ascii=False)

    def _document(self, *, save: bool) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "state": self.values,
            "catalog": self._catalog.to_dict(),
            "held": self._waiting(save=save),
        }

    def _waiting(self, *, save: bool) -> dict[str, Any] | None:
        """The waiting changes. Without open transactions, a state is the same in both modes."""
        if self._reorder_buffer is None:
            return None
        waiting = reorder_buffer_json.to_dict(self._reorder_buffer, save=save)
        return waiting if self._reorder_buffer or self.open_txns else None

    @classmethod
    def from_json(cls, text: str) -> StreamState:
        """The inverse of `to_json`.

        Raises:
            ValueError: if the text is not a state of a known format. `Decoder` checks the rest of the state.
        """
        return cls.from_dict(parsed_json(text, "stream state"))

    @classmethod
    def from_dict(cls, document: Any, catalog: Catalog | None = None) -> StreamState:
        """The state of a parsed document.

        Args:
            document: the values of `to_json`.
            catalog: the document's catalog, if it was read already. Then the document needs none.

        Raises:
            ValueError: as `from_json`.
        """
        if not isinstance(document, dict) or document.get("format") != STATE_FORMAT:
            raise ValueError(
                f"not a stream state of format {STATE_FORMAT}: another version of pgoutput_fast wrote it"
            )
        try:
            reorder_buffer, values = document["held"], document["state"]
            if values is not None and type(values["next_seq"]) is not int:
                raise TypeError("its next ordinal is not an integer")
            state = cls(
                values,
                Catalog.from_dict(document["catalog"]) if catalog is None else catalog,
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
    """A native decoder that continues from a state, or starts at the beginning of the stream.

    Args:
        options: how to decode.
        state: the state.
        catalog: relation versions to know in addition to those of the state.

    Raises:
        ValueError: if the state is not the state of a decoder.
    """
    known = state.catalog if state is not None else Catalog()
    if catalog is not None:
        known = known.merged(catalog)
    return NativeDecoder(options, known, state.values if state is not None else None)


def state_of(native: NativeDecoder) -> StreamState:
    """The state of a native decoder."""
    values, described = native.state_values()
    return StreamState(values, native.catalog, described=described)


def without_changes(state: StreamState | None) -> tuple[int, int]:
    """Number of open and of prepared transactions whose earlier changes a state lacks.

    A state of the committed view has them; a state of an `as_sent` decoder, of `tag` or of a segment has not.
    """
    if state is None or state._reorder_buffer is not None:
        return 0, 0
    position = state.position or {}
    prepared = len(position.get("prepared", ()))
    # At the start of a session, the server sends open transactions again.
    return 0 if position.get("session_starts") else len(state.open_txns) - prepared, prepared
