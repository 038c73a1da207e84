"""Compress the cache of keys and values, and measure what that costs by length."""

from lexbench.core.parts import Part

PART = Part(
    name="kv",
    package="lexbench.parts.kv",
    commands=("lexbench.parts.kv.commands.kv",),
    plug_ins={"compressor": ("compressors", "score")},
)
