"""Price cells: inside the trained length, a method set as its longest length asks for.

Defaults follow the length of a cell: inside the trained length a factor is 1, a group is one token, and the method
equals none by construction. A deployment has one setting, of its longest length, for short texts, too. Cells of a
method with this factor, or with all that it sets at this length, are rows of their own, `ntk(factor=8.0)` and
`self_extend(at=2048)`; those measured inside the trained length alone tell the price of the row `ntk`, and take part in
no mean.
"""

import re

# Not the end of another name, as in `beta_factor=`; with the comma behind it, so that nothing is left of it.
SETTING = re.compile(r"(?<!\w)(factor|at)=([\d.e+]+)(?:, )?")


def without_setting(label: str, trained: int) -> tuple[str, float, str] | None:
    """A method's label without its factor or length, the stretch of it, and its words; None without one, or several.

    `yarn(factor=8.0, beta_fast=16.0)+log_n` is (`yarn(beta_fast=16.0)+log_n`, 8.0, `factor 8`); with 256 trained tokens
    `self_extend(at=2048)` is (`self_extend`, 8.0, `set for 2048`).
    """
    settings = set(SETTING.findall(label))
    if len(settings) != 1:
        return None
    [(kind, number)] = settings
    bare, value = SETTING.sub("", label).replace(", )", ")").replace("()", ""), float(number)
    return (bare, value, f"factor {value:g}") if kind == "factor" else (bare, value / trained, f"set for {number}")
