"""Ask suites of benchmarks: RULER, the standard one, today's puzzles, and exact public ones from your own copies."""

from lexbench.core.parts import Part

PART = Part(
    name="benchmarks",
    package="lexbench.parts.benchmarks",
    provides={
        ("score", each): "lexbench.parts.benchmarks.table:score_folder" for each in ("babilong", "infinitebench")
    },
)
