from typing import Any

from pgoutput_fast._core.tag import Tagger

CONTEXTS: tuple[str, ...]

def export_state(tagger: Tagger) -> dict[str, Any]: ...
def import_state(tagger: Tagger, values: dict[str, Any]) -> None: ...
