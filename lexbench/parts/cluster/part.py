"""Measure on the workers of a Ray cluster."""

from lexbench.core.parts import Part

PART = Part(
    name="cluster",
    package="lexbench.parts.cluster",
    provides={("executor", "ray"): "lexbench.parts.cluster.ray"},
)
