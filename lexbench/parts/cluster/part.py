"""Measure on the workers of a Ray cluster, and with a share of each layer on each GPU."""

from lexbench.core.parts import Part

PART = Part(
    name="cluster",
    package="lexbench.parts.cluster",
    provides={
        ("executor", "ray"): "lexbench.parts.cluster.ray",
        ("backend", "tensor_parallel"): "lexbench.parts.cluster.tensor_parallel",
    },
)
