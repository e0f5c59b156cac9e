"""Snapshots that add and remove files of deletes, besides files with rows.

pyiceberg 0.12 reads manifests of deletes, and copies those of other programs. It writes none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, cached_property
from itertools import groupby
from typing import Any

from pgoutput_fast.tables.iceberg.deletes import delete_entries

__all__ = ["begin_overwrite"]


def begin_overwrite(
    transaction: Any,
    properties: dict[str, str],
    added: Sequence[Any],
    kept: Collection[str],
    *,
    data_change: bool = True,
) -> Any:
    """A snapshot of pyiceberg, a context manager, that replaces files and files of deletes.

    Args:
        transaction: of pyiceberg.
        properties: of the snapshot.
        added: the new files of deletes, in pyiceberg's form.
        kept: the paths of the files of deletes that stay.
        data_change: as in `Commit`.
    """
    from pyiceberg.table.snapshots import Operation

    snapshot = _overwrite_type()(
        Operation.OVERWRITE, transaction, transaction._table.io, snapshot_properties=properties
    )
    snapshot.added_deletes, snapshot.kept_deletes, snapshot.data_change = added, kept, data_change
    return snapshot


@cache
def _overwrite_type() -> Any:
    from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _OverwriteFiles
    from pyiceberg.typedef import EMPTY_DICT

    class Overwrite(_OverwriteFiles):
        added_deletes: Sequence[Any]
        kept_deletes: Collection[str]
        data_change: bool

        @cached_property
        def _known_deletes(self) -> list[ManifestEntry]:
            known = self._transaction.table_metadata.snapshot_by_name(self._target_branch)
            return [] if known is None else delete_entries(self._io, known)

        @cached_property
        def _removed_deletes(self) -> list[Any]:
            files = (entry.data_file for entry in self._known_deletes)
            return [file for file in files if file.file_path not in self.kept_deletes]

        @property
        def _changes_deletes(self) -> bool:
            return bool(self.added_deletes or self._removed_deletes)

        def _existing_manifests(self) -> list[ManifestFile]:
            # pyiceberg would keep the manifests of files removed by earlier snapshots, one per commit.
            return [
                manifest
                for manifest in super()._existing_manifests()
                if (manifest.added_files_count != 0 or manifest.existing_files_count != 0)
                and not (manifest.content == ManifestContent.DELETES and self._changes_deletes)
            ]

        def _manifests(self) -> list[ManifestFile]:
            return super()._manifests() + (self._delete_manifests() if self._changes_deletes else [])

        def _delete_manifests(self) -> list[ManifestFile]:
            """All files of deletes, and those that this snapshot removes: a manifest for each partitioning."""
            entries = [
                _entry(ManifestEntryStatus.ADDED, self._snapshot_id, each) for each in self.added_deletes
            ]
            for known in self._known_deletes:
                if known.data_file.file_path in self.kept_deletes:
                    status, snapshot_id = ManifestEntryStatus.EXISTING, known.snapshot_id
                else:
                    status, snapshot_id = ManifestEntryStatus.DELETED, self._snapshot_id
                entries.append(_entry(status, snapshot_id, known.data_file, known))
            made = []
            for spec_id, group in groupby(sorted(entries, key=_partitioning), key=_partitioning):
                where = self.spec(spec_id), self.schema(), self.new_manifest_output()
                with _writer_type()(*where, self._snapshot_id, self._compression) as writer:
                    for entry in group:
                        writer.add_entry(entry)
                made.append(writer.to_manifest_file())
            return made

        def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
            rows = self._added_data_files, self._deleted_data_files
            self._added_data_files = [*rows[0], *self.added_deletes]
            self._deleted_data_files = rows[1] | set(self._removed_deletes)
            try:
                summary = super()._summary(snapshot_properties)
            finally:
                self._added_data_files, self._deleted_data_files = rows
            if self.data_change:
                return summary
            # pyiceberg makes none for such a snapshot.
            return Summary(operation=Operation.REPLACE, **summary.additional_properties)

    return Overwrite


@cache
def _writer_type() -> Any:
    from pyiceberg.manifest import ManifestContent, ManifestWriterV2

    class DeletesWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    return DeletesWriter


def _entry(status: Any, snapshot_id: int | None, file: Any, known: Any = None) -> Any:
    """An entry of a manifest. A new file gets the sequence number of its snapshot."""
    from pyiceberg.manifest import ManifestEntry

    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=None if known is None else known.sequence_number,
        file_sequence_number=None if known is None else known.file_sequence_number,
        data_file=file,
    )


def _partitioning(entry: Any) -> int:
    return int(entry.data_file.spec_id)
