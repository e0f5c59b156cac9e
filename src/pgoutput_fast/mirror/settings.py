"""What a mirror is told: all arguments of `Mirror`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.progress import LoadProgress

__all__ = ["MirrorSettings"]


@dataclass(frozen=True)
class MirrorSettings:
    """What is mirrored, and how.

    Attributes:
        dsn: of the database.
        slot: the slot's name.
        publications: their names, sorted.
        format: of the current tables.
        segments: the directory of the segments.
        given_segments: the same; None for the one in the target.
        adopt: whether to take over a slot that the mirror did not make.
        options: how to decode.
        threads: number of sessions that read during a load.
        storage_options: what delta-rs needs to reach the store.
        seconds: how old a change may become before it is applied.
        retention: which segments are removed; None for none.
        keep_points: how many points are kept.
        progress: called after each range of pages of a load; None to log it.
    """

    dsn: str = field(repr=False)  # it may contain a password
    slot: str
    publications: tuple[str, ...]
    format: str
    segments: str
    given_segments: str | None
    adopt: bool
    options: Options
    threads: int
    storage_options: Mapping[str, str] = field(repr=False)
    seconds: float
    retention: Retention | None
    keep_points: int
    progress: Callable[[LoadProgress], object] | None = None
