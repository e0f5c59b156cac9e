"""Files that appear in an object store only if there is none of their name. Needs `pip install 'obstore>=0.5'`.

pyarrow cannot do that. obstore has the store of delta-rs, which takes the same options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["put_new"]

# Options of delta-rs that are of the HTTP client, not of the store.
_CLIENT = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
    *("timeout", "user_agent"),
)


def put_new(uri: str, options: Mapping[str, str], name: str, content: bytes) -> None:
    """Writes a file, unless there is one.

    Args:
        uri: of a table, as delta-rs takes it.
        options: of the store, too. Those that only delta-rs knows have no effect.
        name: the path of the file in the table.
        content: its content.

    Raises:
        FileExistsError: if there is a file of this name. If the answer of the store was lost, it may be this one.
        OSError: if the store reports an error. It may write the file all the same, or later.
        ImportError: if `obstore` is not installed.
    """
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
        from obstore.store import from_url
    except ImportError:
        raise ImportError(
            "merge='on_read' in an object store needs obstore: pip install 'obstore>=0.5'"
        ) from None

    def is_known(option: Any) -> bool:
        try:
            from_url(uri, config=option)
        except UnknownConfigurationKeyError:
            return False
        except BaseError:  # it needs others, too
            return True
        return True

    client: Any = {}
    config: Any = {}
    for key, value in options.items():
        plain = key.lower()
        if plain.removeprefix("aws_") in _CLIENT:
            client[plain.removeprefix("aws_")] = value
        elif is_known({plain: value}):
            config[plain] = value
    try:
        obstore.put(from_url(uri, config=config, client_options=client), name, content, mode="create")
    except AlreadyExistsError:
        raise FileExistsError(f"{uri}/{name}") from None
    except (BaseError, ValueError) as problem:
        raise OSError(f"{uri}/{name} cannot be written: {str(problem).partition(chr(10))[0]}") from problem
