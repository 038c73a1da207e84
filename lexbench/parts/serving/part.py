"""Name and compare what other software computes: identify, fingerprint, phases, parity of backends."""

from lexbench.core.parts import Part

PART = Part(
    name="serving",
    package="lexbench.parts.serving",
    commands=tuple(f"lexbench.parts.serving.commands.{each}" for each in ("identify", "fingerprint", "phases")),
    provides={
        ("verify", "against"): "lexbench.parts.serving.parity.compare",
        ("server", "openai"): "lexbench.parts.serving.openai.backend:OpenAI",
    },
)
