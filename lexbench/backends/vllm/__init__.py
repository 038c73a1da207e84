"""vLLM's engine as a backend."""

from lexbench.backends.vllm.backend import Vllm

__all__ = ["Vllm"]
