"""The JSON schema of records.jsonl, which record.schema.json holds, made from the dataclass itself."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from lexbench.core.method_key import MethodKey
from lexbench.core.record import Record


def records_schema() -> dict[str, Any]:
    """JSON schema of a row of records.jsonl, from the dataclass and the docstrings of its fields."""
    described = _field_docstrings(Record)
    kinds = get_type_hints(Record)
    properties = {
        field.name: {
            "type": _json_type(kinds[field.name]),
            **({"description": described[field.name]} if field.name in described else {}),
        }
        for field in fields(Record)
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A row of records.jsonl",
        "description": inspect.cleandoc(Record.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


JSON_TYPES: Mapping[Any, str] = {
    str: "string",
    MethodKey: "string",
    int: "integer",
    float: "number",
    type(None): "null",
}


def _json_type(kind: Any) -> str | list[str]:
    alternatives = get_args(kind)
    return [JSON_TYPES[each] for each in alternatives] if alternatives else JSON_TYPES[kind]


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string that stands below each field in the source."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for line, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            found[line.target.id] = inspect.cleandoc(text)
    return found
