"""The mirror of a target, as read by a sink of current tables at the beginning of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgoutput_fast.mirror.state.layout import SEGMENTS, stream_directory
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.table_record import TableRecord
from pgoutput_fast.storage.paths import is_uri, redacted_uri, split_uri
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.errors import RELOAD

__all__ = ["Mirrored", "read_mirrored"]


@dataclass(frozen=True)
class Mirrored:
    """The recorded state of the mirror.

    Attributes:
        store: the target.
        directory: directory of the segments of the current slot.
        last_seq: ordinal of the last message there whose changes are in all tables; -1 for none.
        tables: {qualified name: state of the table}.
    """

    store: Store
    directory: str
    last_seq: int
    tables: Mapping[str, TableRecord]

    @property
    def following(self) -> list[str]:
        """The tables that are being replicated."""
        return [name for name, record in self.tables.items() if record.stage == "follow"]

    @property
    def oids(self) -> dict[str, int]:
        """{qualified name: the oid of the loaded relation}."""
        return {name: record.oid for name, record in self.tables.items() if record.oid}

    @property
    def keys(self) -> dict[str, list[str]]:
        """{qualified name: the key columns in the last changes applied by the mirror, or in its last load}."""
        return {name: list(record.keys[-1][1]) for name, record in self.tables.items() if record.keys}

    def check_directory(self, directory: str) -> None:
        """Checks that segments are those of the current slot.

        Raises:
            ValueError: if they are not.
        """
        if _place(directory) != _place(self.directory):
            raise ValueError(
                f"the segments in {redacted_uri(directory)} are not those of the mirror in {self.store}: let the "
                f"query read {redacted_uri(self.directory)}, with a new checkpoint"
            )

    def check_named(self, names: Iterable[str], *, wanted: bool) -> None:
        """Checks the tables of the sink, before it begins to work.

        Args:
            names: the tables.
            wanted: whether the user has named them. If not, the old segments may name tables that are no longer
                published. They are an error only if they have changes.

        Raises:
            ValueError: if one of them is not being replicated.
        """
        self.check_followed(
            name for name in names if wanted or (name in self.tables and not self.tables[name].is_unpublished)
        )

    def check_followed(self, names: Iterable[str]) -> None:
        """Checks that changes can be applied to tables.

        Raises:
            ValueError: if one of them is not being replicated.
        """
        for name in sorted(names):
            record = self.tables.get(name)
            if record is None:
                raise ValueError(
                    f"the mirror in {self.store} does not have {name}: run the mirror, which loads it, or leave it out "
                    "with tables="
                )
            if record.stage != "follow" or record.error is not None:
                raise ValueError(
                    f"{name} does not follow its changes in the mirror in {self.store}: "
                    f"{record.error or 'it is not loaded'}. Load it with {RELOAD}, or leave it out with tables="
                )


def read_mirrored(store: Store, format: str, namespace: str) -> Mirrored | None:
    """Returns the mirror of a target; None if it has none.

    Args:
        store: the target.
        format: format of the sink's tables.
        namespace: prefix of the schemas' names of the sink's tables.

    Raises:
        ValueError: if the sink cannot continue after this mirror, or a file is damaged.
    """
    state = MirrorState(store)
    beginning = state.beginning()
    if beginning is None:
        return None
    if beginning.format != format:
        raise ValueError(
            f"the mirror in {store} has tables in the format {beginning.format!r}, and the sink in {format!r}: give "
            "the sink the same format, or another target"
        )
    if beginning.namespace != namespace:
        raise ValueError(
            f"the mirror in {store} has the namespace {beginning.namespace!r}, and the sink {namespace!r}: give the "
            "sink the same namespace, or another target"
        )
    if beginning.iceberg_catalog is not None:
        raise ValueError(
            f"the mirror in {store} has its tables in the catalog {beginning.iceberg_catalog}, which a sink of current "
            "tables cannot use: let the mirror itself follow the changes"
        )
    if beginning.stage != "done":
        raise ValueError(f"a load or a repair of the mirror in {store} was interrupted: run the mirror first")
    progress = state.progress()
    segments = os.fspath(store.at(SEGMENTS)) if beginning.segments is None else beginning.segments
    return Mirrored(
        store,
        segments if progress is None else stream_directory(segments, progress.stream),
        -1 if progress is None else progress.last_seq,
        {record.table: record for record in state.tables().values()},
    )


def _place(directory: str) -> str:
    """Normalizes the name of a directory. The result has no credentials: the mirror does not record them."""
    if is_uri(directory) and split_uri(directory).scheme != "file":
        return redacted_uri(split_uri(directory).geturl()).rstrip("/")
    return os.path.realpath(open_store(directory).at(""))
