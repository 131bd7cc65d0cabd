"""The schemas of `openapi.yaml`, made from the records that the wire speaks.

`python -m jupyter_ext.api_schema` writes them into the file after a record has changed; a test
holds the file to them. The routes above the schemas are written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from horus_lab.records import (
    BrokerEvent,
    Confirm,
    DeviceState,
    ErrorReply,
    HealthReport,
    Heartbeat,
    History,
    Job,
    JobRequest,
    PredictReply,
    PredictRequest,
    Release,
    StoryEntry,
)

OPENAPI_FILE = Path(__file__).with_name("openapi.yaml")

_MARK = "# --- The schemas below are made by `python -m jupyter_ext.api_schema`. ---\n"

_SPOKEN = (
    Job,
    JobRequest,
    Confirm,
    Heartbeat,
    Release,
    PredictRequest,
    PredictReply,
    DeviceState,
    StoryEntry,
    History,
    HealthReport,
    BrokerEvent,
    ErrorReply,
)


def schemas() -> dict[str, Any]:
    """JSON schemas by record name, in the order in which the records refer to each other."""
    _, components = msgspec.json.schema_components(
        _SPOKEN, ref_template="#/components/schemas/{name}"
    )
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(components))
    return plain


def written(document: str) -> str:
    """The document with the schemas of today below its mark."""
    import yaml

    above, mark, _ = document.partition(_MARK)
    if not mark:
        raise ValueError(f"{OPENAPI_FILE.name} has lost its mark")
    body = yaml.safe_dump(
        {"schemas": schemas()}, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    indented = "".join(f"  {line}\n" if line else "\n" for line in body.splitlines())
    return above + mark + indented


if __name__ == "__main__":
    OPENAPI_FILE.write_text(written(OPENAPI_FILE.read_text("utf-8")), "utf-8")
