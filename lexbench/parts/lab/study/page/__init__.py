"""The page of a study: curves of models that differ only in their encoding, shapes of the curves, published tables."""

from lexbench.parts.lab.study.page.measured import Row, check_protocols, keep, load, measured
from lexbench.parts.lab.study.page.page import write_page

__all__ = ["Row", "check_protocols", "keep", "load", "measured", "write_page"]
