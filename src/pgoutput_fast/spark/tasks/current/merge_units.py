"""The last tasks: units of a merge, whose effects are in files."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_fast.merge.units import Unit, UnitResult
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.data_files import NewFiles

__all__ = ["RunUnit"]


@dataclass(frozen=True)
class RunUnit:
    """A unit of a merge.

    Attributes:
        target: the store with all tables.
        file_bytes: approximate maximum size of a file.
        unit: the unit.
    """

    target: str
    file_bytes: int
    unit: Unit

    def __call__(self) -> UnitResult | FileNotFoundError:
        """Returns what the unit did; an error if a file of the table is gone, because the driver may plan again."""
        store = open_store(self.target)
        try:
            with NewFiles(store, self.unit.table.directory, self.file_bytes) as files:
                return self.unit.run(store, files)
        except FileNotFoundError as problem:
            return problem
