"""Read long texts out of packages of Debian: `corpus=novels`, `corpus=manuals`."""

from lexbench.core.parts import Part

PART = Part(name="debian", package="lexbench.parts.debian")
