"""Show results in a browser: one HTML page of runs, a server for running ones, the board."""

from lexbench.core.parts import Part

PART = Part(
    name="web",
    package="lexbench.parts.web",
    commands=tuple(f"lexbench.parts.web.commands.{each}" for each in ("view", "board")),
    provides={("report", "html"): "lexbench.parts.web.page.page:write_page"},
)
