"""A replication connection over a plain socket: the frames as the server sends them, including keepalives.

psycopg2 and clients with libpq would already remove the frames.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from pgoutput_fast.demo.servers import Server
from support import pg

COPY_BOTH, COPY_DATA, READY, ERROR = b"W", b"d", b"Z", b"E"


class Walsender:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.frames: list[bytes] = []

    def read(self) -> tuple[bytes, bytes]:
        """(type, content) of the next message. An ErrorResponse raises an error."""
        head = self._exactly(5)
        content = self._exactly(struct.unpack(">I", head[1:])[0] - 4)
        if head[:1] == ERROR:
            raise RuntimeError(content.replace(b"\0", b" ").decode("utf-8", "replace"))
        return head[:1], content

    def send(self, kind: bytes, content: bytes) -> None:
        self.connection.sendall(kind + struct.pack(">I", len(content) + 4) + content)

    def status(self, lsn: int, *, answer: bool = False) -> None:
        """Sends `lsn` as received, flushed and applied. `answer` requests a keepalive."""
        self.send(COPY_DATA, b"r" + struct.pack(">QQQqB", lsn, lsn, lsn, 0, answer))

    def until(self, tag: bytes, count: int = 1) -> list[bytes]:
        """Reads until `count` messages with this tag (b"k": keepalives) have arrived. Returns all frames so far."""
        deadline = time.monotonic() + 120
        while sum((frame[25:26] if frame[:1] == b"w" else frame[:1]) == tag for frame in self.frames) < count:
            assert time.monotonic() < deadline, f"{tag!r} did not come {count} times"
            kind, content = self.read()
            if kind == COPY_DATA:
                self.frames.append(content)
        return self.frames

    def close(self) -> None:
        self.connection.close()

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self.connection.recv(count - len(parts))
            if not part:
                raise ConnectionError("the server closed the connection")
            parts += part
        return parts


@contextlib.contextmanager
def walsender(
    server: Server, database: str, slot: str, options: Mapping[str, str], **session: str
) -> Iterator[Walsender]:
    """Runs START_REPLICATION on a server that trusts its clients. `session` are settings of the session."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=180) as connection:
        opened = Walsender(connection)
        pins = pg.PINNED_SETTINGS | session
        settings = {"user": "postgres", "database": database, "replication": "database"}
        settings["options"] = " ".join(f"-c {name}={value}" for name, value in pins.items())
        startup = struct.pack(">I", 3 << 16) + b"".join(
            name.encode() + b"\0" + value.encode() + b"\0" for name, value in settings.items()
        )
        connection.sendall(struct.pack(">I", len(startup) + 5) + startup + b"\0")
        while opened.read()[0] != READY:
            pass
        given = ", ".join(f"{name} {pg.literal(value)}" for name, value in options.items())
        command = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({given})'
        opened.send(b"Q", command.encode() + b"\0")
        while opened.read()[0] != COPY_BOTH:
            pass
        yield opened
