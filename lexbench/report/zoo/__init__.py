"""Many small models that differ in their encoding alone: their curves, the curves' shapes, and papers' beside them."""

from lexbench.report.zoo.measured import Row, keep, load, measured
from lexbench.report.zoo.page import write_page

__all__ = ["Row", "keep", "load", "measured", "write_page"]
