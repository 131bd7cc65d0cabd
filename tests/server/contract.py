"""`openapi.yaml` as the tests read it: routes, and what an answer may look like."""

from __future__ import annotations

from typing import Any

import httpx
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from jupyter_ext.api_schema import OPENAPI_FILE

METHODS = ("get", "post", "put", "patch", "delete")
DOCUMENT: dict[str, Any] = yaml.safe_load(OPENAPI_FILE.read_text("utf-8"))
_REGISTRY: Registry[Any] = Registry().with_resource(
    "urn:horus", Resource.from_contents(DOCUMENT, default_specification=DRAFT202012)
)


def routes() -> list[tuple[str, str]]:
    """(method, path below the API) of every route in the file, `{job_id}` filled in."""
    return [
        (method.upper(), path.lstrip("/").replace("{job_id}", "job-1"))
        for path, item in DOCUMENT["paths"].items()
        for method in METHODS
        if method in item
    ]


def template(path: str) -> str:
    """The file's own form of a path: `jobs/abc/story` is `/jobs/{job_id}/story`."""
    parts = path.split("?")[0].strip("/").split("/")
    if parts[0] == "jobs" and len(parts) > 1:
        parts[1] = "{job_id}"
    return "/" + "/".join(parts)


def check(answer: httpx.Response, method: str, path: str) -> Any:
    """The answer's JSON, once it is one that the file allows for this route."""
    operation = DOCUMENT["paths"][template(path)][method.lower()]
    status = str(answer.status_code)
    assert status in operation["responses"], f"{method} {path} answered {status}: {answer.text}"
    reference = operation["responses"][status]["$ref"]
    response = DOCUMENT["components"]["responses"][reference.rsplit("/", 1)[1]]
    (media_type,) = response["content"]
    assert answer.headers["Content-Type"].split(";")[0] == media_type
    pointer = f"{reference}/content/{media_type.replace('/', '~1')}/schema"
    schema = {"$ref": f"urn:horus{pointer}"}
    body = answer.json()
    Draft202012Validator(schema, registry=_REGISTRY).validate(body)
    return body
