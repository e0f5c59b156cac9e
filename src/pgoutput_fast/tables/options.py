"""How tables are reached and written, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pgoutput_fast.storage.paths import redacted_uri
from pgoutput_fast.tables.files import CURRENT_FILE_BYTES
from pgoutput_fast.tables.naming import SAME_NAMES, Naming

__all__ = ["MERGES", "Merge", "Merges", "TableOptions"]

Merge: TypeAlias = Literal["on_write", "on_read"]
MERGES: tuple[Merge, ...] = ("on_write", "on_read")
# Of all tables, or {qualified name: of this table}. Others have `on_write`.
Merges: TypeAlias = Merge | Mapping[str, Merge]


@dataclass(frozen=True)
class TableOptions:
    """The options of all formats. A format uses those that it needs.

    Attributes:
        storage: options of delta-rs for the store, besides the URI.
        iceberg_catalog: properties of a pyiceberg catalog; None for the one in the target.
        file_bytes: about how many bytes a file of a current table has at most.
        naming: the names of current tables, with prefixes only.
        merge: how rows of current tables are updated and deleted: files with them are rewritten (`on_write`), or the
            rows are marked deleted in files that stay, and readers skip them (`on_read`). A mapping has that of some
            tables, by their qualified names; the others have `on_write`.
        history_seconds: about how many seconds are between two commits of a history.
    """

    storage: Mapping[str, str] | None = field(default=None, repr=False)  # both may have secrets
    iceberg_catalog: Mapping[str, str] | None = field(default=None, repr=False)
    file_bytes: int = CURRENT_FILE_BYTES
    naming: Naming = SAME_NAMES
    merge: Merges = "on_write"
    history_seconds: float = 10.0

    def merge_of(self, table: str) -> Merge:
        """How rows of a table are updated and deleted.

        >>> TableOptions(merge={"public.large": "on_read"}).merge_of("public.small")
        'on_write'
        """
        return self.merge.get(table, "on_write") if isinstance(self.merge, Mapping) else self.merge

    def commits_late(self, *, local: bool) -> bool:
        """Whether a commit may be made after its process ended, because a store or the server of a catalog makes it.

        Args:
            local: whether the tables are in a directory.

        >>> TableOptions(iceberg_catalog={"uri": "sqlite:///shared.db"}).commits_late(local=True)
        False
        """
        catalog = self.iceberg_catalog or {}
        return not local or (bool(catalog) and not catalog.get("uri", "").startswith("sqlite"))

    @property
    def catalog_place(self) -> str | None:
        """The Iceberg catalog without credentials; None for the one in the target."""
        known = self.iceberg_catalog
        return None if not known else redacted_uri(known.get("uri") or known.get("name") or "a catalog")
