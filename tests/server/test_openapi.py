"""The file, the routes and the records say the same."""

from __future__ import annotations

import re

from openapi_spec_validator import validate

from jupyter_ext import answers, api_schema
from jupyter_ext.access import Access
from jupyter_ext.events import event_routes
from jupyter_ext.handlers import API_PATH, rest_routes
from jupyter_ext.wiring import Wiring
from tests.server.contract import DOCUMENT, METHODS


def served() -> set[tuple[str, str]]:
    wiring = Wiring(Access("ada"))
    found = set()
    for pattern, handler, _ in rest_routes(wiring) + event_routes(wiring):
        path = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern.removeprefix(API_PATH))
        for method in METHODS:
            ours = getattr(handler, method)
            if ours is not getattr(answers.JupyterHandler, method):
                found.add((method, path))
    return found


def described() -> set[tuple[str, str]]:
    return {
        (method, path)
        for path, item in DOCUMENT["paths"].items()
        for method in METHODS
        if method in item
    }


def test_the_file_is_valid_openapi() -> None:
    validate(DOCUMENT)


def test_every_route_is_described_and_every_description_is_served() -> None:
    assert served() == described()


def test_the_schemas_are_those_of_the_records() -> None:
    """`python -m jupyter_ext.api_schema` brings them up to date."""
    assert DOCUMENT["components"]["schemas"] == api_schema.schemas()


def test_the_file_is_as_the_generator_writes_it() -> None:
    text = api_schema.OPENAPI_FILE.read_text("utf-8")
    assert api_schema.written(text) == text


def test_every_route_describes_the_answers_that_every_route_has() -> None:
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                assert {"401", "403", "503"} <= item[method]["responses"].keys(), path
