"""Abacus embeddings: the place of a digit in its number (McLeish et al. 2024, arXiv 2405.17399)."""

from lexbench.parts.lab.encodings.wrappers import DigitPlaces


class Abacus(DigitPlaces):
    """A learned vector for each digit's place in its number is added to the token embedding.

        x_n = embedding(n) + table[place(n) + delta],   place 0 for the first digit of a number, 1 for the next, ..
        delta ~ U{0 .. offsets - 1} in training, one for each batch; 0 at use;  nothing is added to other tokens

    A number is a run of digit tokens. Places count from its beginning, the only direction that a causal model knows; in
    the paper numbers are written with the last digit first, so that a place is a power of ten. Offsets train rows of
    the table that longer numbers need. The released code (read, not run) adds row 0 to all other tokens, a vector that
    nothing else uses, and counts places from 1.

    Args:
        over: the encoding of everything else; the paper takes none, rope or fire.
        width: of the network.
        digits: token ids, or texts, which become the ids of the tokens that are one of them, white space aside.
        size: rows of the table.
        offsets: number of values of delta; 100 in the paper.
        deviation: of the initial token embeddings, and so of the table; a training states its own.
    """
