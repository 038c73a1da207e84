"""vLLM's engine as a backend."""

from lexbench.parts.serving.vllm.backend import Vllm

__all__ = ["Vllm"]
