"""Classes that stored configs name at an earlier place: in trained folders, journals of searches and hashes of both."""

from typing import Any

PRESENT_PLACES = {
    "encodings": "parts.lab.encodings",
    "native": "parts.lab.native",
    "backends.native": "parts.lab.backend",
    "backends.openai.OpenAI": "parts.serving.openai.backend.OpenAI",
    "backends.vllm": "parts.serving.vllm",
    "corpora.debian": "parts.debian.packages",
    "corpora.manuals": "parts.debian.manuals",
    "corpora.novels": "parts.debian.novels",
}
"""Present place of each moved module or class, both without `lexbench.`."""


def present_path(path: str) -> str:
    """The present dotted path of a class of lexbench; any other text is returned as it is."""
    for former, present in PRESENT_PLACES.items():
        if f"{path}.".startswith(f"lexbench.{former}."):
            return f"lexbench.{present}{path.removeprefix(f'lexbench.{former}')}"
    return path


def with_present_paths(value: Any) -> Any:
    """JSON values with every moved path at its present place, in lists and objects too."""
    if isinstance(value, dict):
        return {name: with_present_paths(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(with_present_paths, value)]
    return present_path(value) if isinstance(value, str) else value


def with_former_paths(text: str) -> str:
    """A JSON text with the laboratory's classes at the place of the first trainings, whose hashes hold it."""
    return text.replace('"lexbench.parts.lab.', '"lexbench.')
