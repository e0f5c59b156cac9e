"""Checks the state with which a caller continues a stream."""

from __future__ import annotations

import json

from pgoutput_fast.decoding.decoder import tag
from pgoutput_fast.decoding.state import StreamState

__all__ = ["given_state"]


def given_state(state: StreamState | str | None) -> StreamState:
    """Returns the given state, parsed if it is JSON text; by default, the beginning of a stream.

    Raises:
        TypeError, ValueError: if a tagger cannot continue from it.
    """
    try:
        given = StreamState.from_json(state) if isinstance(state, str) else state
    except json.JSONDecodeError:
        raise ValueError(
            "state is not the JSON text of a StreamState: pass the content of a file, not its name"
        ) from None
    return StreamState() if given is None else tag([], given)[1]
