"""The text of a row of a dataset: in a field, in a nested field, or in a list."""

from collections.abc import Mapping
from typing import Any

from lexbench.core.errors import ConfigError


def text_of(row: Mapping[str, Any], field: str, form: str | None, place: str) -> str | None:
    """The text in a field of a row; None where the field is null.

    A list is joined, one line an item. Items are texts, or objects that `form` turns into texts.

    Args:
        row: names and values.
        field: a name; if the row has no such name, a path of names: `meeting.title`.
        form: how an object of a list is written: `{speaker}: {content}`.
        place: where the row is, for error messages: `meetings.jsonl line 3`.

    Raises ConfigError where the field is missing, or holds no text.
    """
    value: Any = row
    for name in [field] if field in row else field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise _no_text(row, field, "there is none", place)
        value = value[name]
    if isinstance(value, list):
        return "\n".join(_item(row, field, form, item, place) for item in value)
    if not isinstance(value, str | None):
        raise _no_text(row, field, f"it is {type(value).__name__}", place)
    return value


def _item(row: Mapping[str, Any], field: str, form: str | None, item: Any, place: str) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item, Mapping):
        raise _no_text(row, field, f"it is a list of {type(item).__name__}", place)
    have = ", ".join(item)
    if form is None:
        raise ConfigError(f"{place} has a list of objects in field {field!r}: say by corpus.form how to write {have}")
    try:
        return form.format_map(item)
    except (KeyError, ValueError, IndexError):
        raise ConfigError(f"{place} cannot be written as corpus.form {form!r}: name fields out of {have}") from None


def _no_text(row: Mapping[str, Any], field: str, found: str, place: str) -> ConfigError:
    have = ", ".join(sorted(key for key, value in row.items() if isinstance(value, str | list | Mapping)))
    return ConfigError(f"{place} has no text in field {field!r}, {found}: choose corpus.field from {have or 'nothing'}")
