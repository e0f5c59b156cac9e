"""A local server that speaks S3 and Glue, with a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["Bucket", "opened_bucket"]

# delta-rs holds the GIL while it waits for an answer, so the server is a separate process. It obeys the lines that it
# reads: stop, start; how many requests need no known key from now on (trust); the files that nobody may write (refuse);
# the files whose next writes succeed without an answer (lose); and those whose next writes fail, but succeed later (delay,
# arrive).
_SERVER = """
import io
import socket
import sys
import moto.settings
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer

refused, lost, delayed, waiting = [], [], [], []

class Faulty(threaded_moto_server.DomainDispatcherApplication):
    def __call__(self, environ, respond):
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        writes = method not in ("GET", "HEAD")
        if writes and any(part in path for part in refused):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            respond("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        if method == "PUT" and delayed and delayed[0] in path:
            delayed.pop(0)
            content = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            waiting.append((super().__call__, {**environ, "wsgi.input": io.BytesIO(content)}))
            respond("400 Bad Request", [("Content-Type", "application/xml")])
            return [b"<Error><Code>RequestTimeout</Code><Message>Idle connection</Message></Error>"]
        answer = list(super().__call__(environ, respond))
        if writes and lost and lost[0] in path + environ.get("HTTP_X_AMZ_TARGET", ""):
            lost.pop(0)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer

threaded_moto_server.DomainDispatcherApplication = Faulty
host, port, server = "127.0.0.1", 0, None
for line in sys.stdin:
    if line == "start\\n":
        server = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
    elif line == "stop\\n":
        server.stop()
    elif line.startswith("refuse"):
        refused[:] = line.split()[1:]
    elif line.startswith("lose"):
        lost[:] = line.split()[1:]
    elif line.startswith("delay"):
        delayed[:] = line.split()[1:]
    elif line == "arrive\\n":
        while waiting:
            execute, environ = waiting.pop(0)
            list(execute(environ, lambda *_: None))
    elif not line.startswith("lost?"):
        moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = float(line)
    print(f"{host}:{port} {len(lost)}", flush=True)
"""


class Bucket:
    """A bucket of a server that can stop and restart. Its content is kept.

    Attributes:
        uri: of the bucket, with `%s` in place of the path.
        endpoint: host and port of the server.
    """

    def __init__(self, name: str) -> None:
        if os.environ.get("CI") != "true":
            pytest.importorskip("moto.server")
        from pyarrow import fs

        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.endpoint, _ = self._say("start").split()
        self.uri = f"s3://key:secret@{name}/%s?scheme=http&endpoint_override={self.endpoint}&region=us-east-1"
        s3, _ = fs.FileSystem.from_uri(self.uri % "" + "&allow_bucket_creation=true")
        s3.create_dir(name)

    def _say(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        self._say("stop")

    def start(self) -> None:
        self._say("start")

    def trust(self, requests: float) -> None:
        """Accepts this number of requests from everybody, and others only with a known key. No key is known."""
        self._say(str(requests))

    def refuse(self, *parts: str) -> None:
        """From now on, refuses to write files whose path has one of these parts. Without parts, accepts all."""
        self._say(" ".join(["refuse", *parts]))

    def lose_answers(self, *parts: str) -> None:
        """Writes the next files whose paths have these parts, one after another, but does not answer.

        A part may be an action of another service, such as `AWSGlue.UpdateTable`.
        """
        self._say(" ".join(["lose", *parts]))

    def delay(self, *parts: str) -> None:
        """Answers the next writes of files whose paths have these parts, one after another, with an error."""
        self._say(" ".join(["delay", *parts]))

    def arrive(self) -> None:
        """Executes the delayed writes."""
        self._say("arrive")

    @property
    def to_lose(self) -> int:
        """The number of answers that it will still lose."""
        return int(self._say("lost?").split()[1])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def opened_bucket(name: str) -> Iterator[Bucket]:
    """A bucket of its own server, which ends with the block."""
    bucket = Bucket(name)
    try:
        yield bucket
    finally:
        bucket.close()
