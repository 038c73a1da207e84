"""Tell apart what a far key loses by distance, neighbourhood, sink, filler and rivals."""

from lexbench.core.parts import Part

PART = Part(name="anatomy", package="lexbench.parts.anatomy", commands=("lexbench.parts.anatomy.commands.anatomy",))
