"""What the reference decoder keeps: relations as they were described, transactions, and what waits in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reference_nested import Kind


@dataclass(frozen=True)
class Frame:
    seq: int
    lsn: int | None
    payload: bytes


@dataclass(frozen=True)
class Column:
    name: str
    type_oid: int
    type: Kind
    on_the_wire: Kind  # the same without what a live server said


@dataclass(frozen=True)
class Relation:
    oid: int
    namespace: str
    name: str
    version: int
    columns: tuple[Column, ...]

    @property
    def quoted(self) -> str:
        return f"{quote(self.namespace)}.{quote(self.name)}"


def quote(name: str) -> str:
    """A name as SQL would quote it, reserved words aside."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Said:
    """What an R or a Y said of an oid. `content` is a Relation, or the (namespace, name) of a type, or None
    if the message was bad. With `doubt`, changes of the relation cannot be decoded."""

    tag: str
    oid: int
    seq: int
    subxid: int | None
    content: Any
    doubt: str | None = None


@dataclass(frozen=True)
class Held:
    """Something to put out now or, in committed mode, when its transaction commits. `subxid` is None for what
    does not go with its subtransaction."""

    frame: Frame
    subxid: int | None
    emit: Callable[[], None]
    relation: str | None = None  # of a change


@dataclass(eq=False)
class Transaction:
    key: int  # seq of its B, b or first S
    tag: str  # B, b or S
    xid: int
    gid: str | None = None
    commit_lsn: int | None = None
    commit_timestamp: int | None = None
    prepare_timestamp: int | None = None
    prepare_end_lsn: int | None = None
    in_doubt: bool = False  # who knows whether a message that was set aside ended it, or a part of it
    may_be_over: bool = False  # prepared, and a message that was set aside may have ended it
    origin: str | None = None
    origin_lsn: int | None = None
    said: list[Said] = field(default_factory=list)  # by R and Y within its stream blocks
    # Subtransactions whose R, of who knows which relation, is lost; 0 stands for all of it.
    unread: set[int] = field(default_factory=set)
    held: list[Held] = field(default_factory=list)
