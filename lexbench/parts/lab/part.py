"""Train small models with a positional encoding of your choice, and study them."""

from lexbench.core.parts import Part

PART = Part(
    name="lab",
    package="lexbench.parts.lab",
    commands=tuple(f"lexbench.parts.lab.commands.{each}" for each in ("train", "study", "convert")),
)
