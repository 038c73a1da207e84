"""Ask the exact forms of public benchmarks from your own copies."""

from lexbench.core.parts import Part

PART = Part(
    name="benchmarks",
    package="lexbench.parts.benchmarks",
    provides={
        ("score", each): "lexbench.parts.benchmarks.table:score_folder" for each in ("babilong", "infinitebench")
    },
)
