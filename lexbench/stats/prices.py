"""Price cells: inside the trained length, a method with the factor that its longest length asks for.

The default factor follows the length of a cell, so that inside the trained length it is 1, and the method equals none
there by construction. A deployment has one factor, of its longest length, for short texts, too. Cells of a method with
this factor are rows of their own, `ntk(factor=8.0)`; those measured inside the trained length alone tell the price of
the row `ntk`, and take part in no mean.
"""

import re

# Not the end of another name, as in `beta_factor=`; with the comma behind it, so that nothing is left of it.
FACTOR = re.compile(r"(?<!\w)factor=([\d.e+]+)(?:, )?")


def without_factor(label: str) -> tuple[str, float] | None:
    """A method's label with its factor left out, and the factor; None without one, or with several.

    `yarn(factor=8.0, beta_fast=16.0)+log_n` is (`yarn(beta_fast=16.0)+log_n`, 8.0).
    """
    factors = set(FACTOR.findall(label))
    if len(factors) != 1:
        return None
    bare = FACTOR.sub("", label).replace(", )", ")").replace("()", "")
    return bare, float(factors.pop())
