"""Zebra: layers with windows in groups around one that sees all (Song et al. 2023, arXiv 2312.08618)."""

from lexbench.core.attention import Attention, Window
from lexbench.core.errors import ConfigError
from lexbench.parts.lab.encodings.base import Encoding
from lexbench.parts.lab.encodings.wrappers import EncodingWrapper, LayerWithSlots


class Zebra(EncodingWrapper):
    """One layer of each group of g sees all keys, the others w keys; positions are the same in all.

        layer l, counted from 0, sees all where l mod g = 0

    Not verified: which layer of a group is global, and the paper's g and w, follow a secondary description; the authors
    released code for inference, which was not read. Unlike `hwfa2` it is the same in training and at use.

    Args:
        over: the encoding of all layers: rope.
        trained_length: tokens.
        group: g, layers of a group, at least 1 (then all see everything).
        window: w in tokens, the query's own included; None: an eighth of the trained length.
    """

    def __init__(self, over: Encoding, trained_length: int, group: int = 4, window: int | None = None) -> None:
        super().__init__(over)
        if group < 1:
            raise ConfigError(f"zebra's group must be at least 1 layer, got {group}: take 4")
        self.group = group
        self.window = Window(max(1, trained_length // 8) if window is None else window)

    def at(self, layer: int) -> Encoding:
        """The inner encoding, with a window or without."""
        inner = self.over.at(layer)
        return LayerWithSlots(inner, Attention(mask=self.window), self.name) if layer % self.group else inner
