"""Exchange results and tasks with other programs and the Hugging Face hub."""

from lexbench.core.parts import Part

PART = Part(
    name="exchange",
    package="lexbench.parts.exchange",
    commands=tuple(f"lexbench.parts.exchange.commands.{each}" for each in ("share", "import_", "lm_eval")),
    provides={("compare", "samples"): "lexbench.parts.exchange.files.sample_comparison"},
)
