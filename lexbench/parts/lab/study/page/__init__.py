"""The page of a study: curves of models that differ only in their encoding, shapes of the curves, published tables."""

from lexbench.parts.lab.study.page.measured import (
    MeasuredRow,
    check_protocols,
    measured_rows,
    read_page_data,
    write_rows,
)
from lexbench.parts.lab.study.page.page import write_page

__all__ = ["MeasuredRow", "check_protocols", "measured_rows", "read_page_data", "write_page", "write_rows"]
