"""Read GGUF files as checkpoints."""

from lexbench.core.parts import Part

PART = Part(
    name="gguf",
    package="lexbench.parts.gguf",
    provides={("checkpoint", "gguf"): "lexbench.parts.gguf.folder:gguf_folder"},
)
