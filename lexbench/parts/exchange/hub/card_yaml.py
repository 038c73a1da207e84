"""Reads and edits the YAML head of a card on the Hugging Face hub (between two lines of dashes in its README.md)."""

from typing import Any

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from lexbench.core.errors import ConfigError

BYTE_ORDER_MARK = "\ufeff"
"""Byte order mark, which some editors put at the beginning of a file."""


def read_head(card: str) -> dict[str, Any]:
    """The head's data; empty if the card has no head. ConfigError if it is not a YAML mapping."""
    found = REGEX_YAML_BLOCK.search(card.removeprefix(BYTE_ORDER_MARK))
    return _parse_yaml(found[2]) if found else {}


def set_head_key(card: str, key: str, value: Any) -> str:
    """The card with one key of its head replaced or added; every other byte stays.

    Raises ConfigError if the head is not a YAML mapping, or if its layout does not allow to replace one key.
    """
    mark, text = (BYTE_ORDER_MARK, card[1:]) if card.startswith(BYTE_ORDER_MARK) else ("", card)
    end = "\r\n" if "\r\n" in text else "\n"
    new = dump_yaml({key: value}).replace("\n", end)
    found = REGEX_YAML_BLOCK.search(text)
    if not found:
        return f"{mark}---{end}{new}---{end}{text}"
    old = found[2]
    # Only the lines of this key are replaced: a YAML writer would lose the comments, quotes and order of the others.
    expected = {**_parse_yaml(old), key: value}
    begin, stop = _span_of_key(old, key)
    rest = old[stop:]
    before = old[:begin] + (end if begin == stop and old and not old.endswith("\n") else "")
    changed = before + (new + rest if rest else new.removesuffix(end))
    try:  # proof that the cut was right: anchors, or several keys on one line, make it wrong
        same = dump_yaml(_parse_yaml(changed)) == dump_yaml(expected)
    except ValueError:
        same = False
    if not same:
        raise ConfigError(
            f"{key} cannot be replaced alone: write each key of the head on its own line, without aliases"
        )
    return mark + text[: found.start(2)] + changed + text[found.end(2) :]


def dump_yaml(data: Any) -> str:
    """Plain data as YAML; keys keep their order."""
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _parse_yaml(text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"its head is not YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("its head must be a mapping of keys to values")
    return data


def _span_of_key(text: str, key: str) -> tuple[int, int]:
    """Begin and end of a key with its value; both are the end of the text if there is no such key.

    Comments and blank lines after the value belong to the next key.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    places = [*(node.start_mark.index for node, _ in pairs), len(text)]
    for (node, _), begin, stop in zip(pairs, places, places[1:], strict=False):
        if node.value == key:
            lines = text[begin:stop].splitlines(keepends=True)
            while not lines[-1].strip() or lines[-1].startswith("#"):
                lines.pop()
            return begin, begin + len("".join(lines))
    return len(text), len(text)
