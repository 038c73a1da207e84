"""Exchange results and tasks with other programs and the Hugging Face hub."""

from lexbench.core.parts import Part

PART = Part(
    name="exchange",
    package="lexbench.parts.exchange",
    commands=tuple(f"lexbench.parts.exchange.commands.{each}" for each in ("certify", "share", "import_", "lm_eval")),
    provides={("referee", "samples"): "lexbench.parts.exchange.referee.command"},
)
