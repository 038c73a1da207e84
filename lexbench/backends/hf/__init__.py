"""transformers as a backend."""

from lexbench.backends.hf.backend import Hf

__all__ = ["Hf"]
