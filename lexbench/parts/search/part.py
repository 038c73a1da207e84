"""Search for settings: tune, factors of LongRoPE, key tokens."""

from lexbench.core.parts import Part

PART = Part(
    name="search",
    package="lexbench.parts.search",
    commands=tuple(f"lexbench.parts.search.commands.{each}" for each in ("tune", "search", "keys", "trace")),
)
