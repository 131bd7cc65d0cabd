"""Records to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from horus_lab.errors import InvalidRequest

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()


def encode(record: Any) -> bytes:
    """A record as JSON. Never `NaN` or `Infinity`: msgspec writes those as `null`."""
    return _ENCODER.encode(record)


def decode(data: bytes | str, kind: type[T]) -> T:
    """JSON as a record.

    Raises:
        InvalidRequest: malformed JSON, wrong types, unknown fields, numbers out of bounds.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"This is not a valid {kind.__name__}: {error}.",
            hint="Correct the named field and send it again.",
        ) from error


def to_builtins(record: Any) -> Mapping[str, Any]:
    """A record as plain dicts and lists, for display and for documents."""
    result: Mapping[str, Any] = msgspec.to_builtins(record)
    return result
