"""NoPE: no positional encoding (Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466)."""

from lexbench.parts.lab.encodings.base import Encoding


class Nope(Encoding):
    """No positions: only the causal mask tells the order, because later tokens see more keys.

        logit(i, j) = q_i . k_j / sqrt(d)

    It has no parameters and no limit of length. Longer texts still lose quality: the softmax spreads over more keys.
    """

    def __init__(self) -> None:
        super().__init__()
