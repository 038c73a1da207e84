"""Any server with the OpenAI completions interface as a backend."""

from lexbench.backends.openai.backend import OpenAI

__all__ = ["OpenAI"]
