"""A local server that speaks S3, with a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["Bucket", "opened_bucket"]


class Bucket:
    """A bucket of a server that can go away and come back. What it has stays.

    Attributes:
        uri: of the bucket; `%s` in it is the place of the path.
        endpoint: host and port of the server.
    """

    def __init__(self, name: str) -> None:
        if os.environ.get("CI") != "true":
            pytest.importorskip("moto.server")
        from moto.server import ThreadedMotoServer
        from pyarrow import fs

        self._make = ThreadedMotoServer
        self._server: Any = None
        self._address = ("127.0.0.1", 0)
        self.start()
        self.endpoint = f"{self._address[0]}:{self._address[1]}"
        self.uri = f"s3://key:secret@{name}/%s?scheme=http&endpoint_override={self.endpoint}&region=us-east-1"
        s3, _ = fs.FileSystem.from_uri(self.uri % "" + "&allow_bucket_creation=true")
        s3.create_dir(name)

    def start(self) -> None:
        host, port = self._address
        self._server = self._make(ip_address=host, port=port, verbose=False)
        self._server.start()
        self._address = self._server.get_host_and_port()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


@contextmanager
def opened_bucket(name: str) -> Iterator[Bucket]:
    """A bucket of a server of its own, which stops at the end."""
    bucket = Bucket(name)
    try:
        yield bucket
    finally:
        bucket.stop()
