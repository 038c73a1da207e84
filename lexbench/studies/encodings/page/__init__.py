"""Many small models that differ in their encoding alone: their curves, the curves' shapes, and papers' beside them."""

from lexbench.studies.encodings.page.measured import Row, keep, load, measured
from lexbench.studies.encodings.page.page import write_page

__all__ = ["Row", "keep", "load", "measured", "write_page"]
