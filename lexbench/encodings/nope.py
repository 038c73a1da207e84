"""NoPE: no positional encoding (Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466)."""

from lexbench.encodings.base import Encoding


class Nope(Encoding):
    """Nothing says where a token stands but the causal mask: that later tokens see more keys than earlier ones.

        logit(i, j) = q_i . k_j / sqrt(d)

    It has no parameters and no longest text, and still loses on longer ones: the softmax spreads over more keys.
    """

    def __init__(self) -> None:
        super().__init__()
