"""Limits of a card, and the operations and bytes that texts and written tokens need.

Specifications are NVIDIA's, of dense bfloat16 products (its data sheets state twice as much, with sparsity) and of the
memory's bandwidth:

    H100 SXM, PCIe    NVIDIA H100 Tensor Core GPU Architecture (white paper, 2022), table of the three form factors;
                      bandwidths by the data sheet NVIDIA H100 Tensor Core GPU
    H100 NVL          data sheet NVIDIA H100 Tensor Core GPU
    H200 SXM, NVL     data sheet NVIDIA H200 Tensor Core GPU
    A100              data sheet NVIDIA A100 Tensor Core GPU (80 GB, 2021)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lexbench.checkpoints.config_facts import facts_of_config
from lexbench.core.attention import Attention, Window
from lexbench.core.model import Model
from lexbench.core.task import Outline
from lexbench.runner.forecast import cell_workload


@dataclass(frozen=True)
class Rates:
    """Rates of a card, or of what runs on one."""

    operations: float
    """A second, of a matrix product; a multiplication and an addition are two."""
    bytes: float
    """A second, read and written."""


CARDS: tuple[tuple[str, Rates], ...] = (
    ("H100 NVL", Rates(835.5e12, 3.9e12)),
    ("H100 PCIe", Rates(756e12, 2.0e12)),
    ("H100 80GB HBM3", Rates(989.4e12, 3.35e12)),  # the name of the SXM module
    ("H200 NVL", Rates(835.5e12, 4.8e12)),
    ("H200", Rates(989.5e12, 4.8e12)),
    ("A100-SXM4-80GB", Rates(312e12, 2.039e12)),
    ("A100 80GB PCIe", Rates(312e12, 1.935e12)),
)
"""By a part of the device's name, the first that fits."""
UNKNOWN = Rates(1e14, 1e12)
"""Rates that forecasts assume on a card that is neither known nor measured."""
REACHED_SHARE = 0.5
"""Share of a card's rates that forecasts assume; on an H200 models reached 0.53 to 0.77 of a copy's and a product's."""
QUERIES_TO_COUNT = 257
"""Queries, evenly spaced, whose keys are counted under a mask."""


def specification(card: str) -> Rates | None:
    """Rates that the maker states of a card, by its device name; None: not known here."""
    return next((rates for part, rates in CARDS if part in card), None)


def assumed_rates(card: str, machine: Mapping[str, Any] | None) -> Rates:
    """Rates for forecasts: a share of those that were measured, else of those that are stated."""
    known = specification(card) or UNKNOWN
    if machine:
        known = Rates(machine["operations_per_second"], machine["bytes_per_second"])
    return Rates(REACHED_SHARE * known.operations, REACHED_SHARE * known.bytes)


def keys_seen(attention: Attention, query: int) -> int:
    """Keys that the query of a position sees."""
    if attention.mask is None:
        return query + 1
    return int(attention.mask.allowed(np.array([query]), np.arange(query + 1)).sum())


def share_of_pairs(attention: Attention, length: int) -> float:
    """Pairs of a query and a key that it sees, as a share of those of a causal text."""
    if attention.mask is None:
        return 1.0
    places = np.linspace(0, length - 1, min(length, QUERIES_TO_COUNT)).round().astype(int)
    seen = [keys_seen(attention, int(place)) for place in places]
    return float(np.sum(seen) / np.sum(places + 1))


def reading_operations(model: Model, parameters: int, attention: Attention, length: int, own: float = 1.0) -> float:
    """Operations of one pass over a text, by the formula of plans (`runner.forecast.cell_workload`).

    Args:
        model: its facts; `width` is that of all heads.
        parameters: those that multiply every token: without embeddings, and without the head, which reads one.
        attention: of the method; pairs that it masks count nothing.
        length: tokens.
        own: share of pairs that the model's own windows leave, over its layers.
    """
    counted = cell_workload(replace(model, parameters=parameters), Outline(questions=1, length=length))
    return counted.dense + counted.quadratic * min(own, share_of_pairs(attention, length))


def pairs_in_windows(config: Any, length: int) -> float:
    """Share of a causal text's pairs that a model's own layers see, sliding and full ones."""
    windows = own_windows(config)
    whole = config.num_hidden_layers - len(windows)
    each = [share_of_pairs(Attention(mask=Window(size)), length) for size in windows]
    return float(whole + sum(each)) / float(config.num_hidden_layers)


def own_windows(config: Any) -> list[int]:
    """Size of each sliding layer's window."""
    kinds = getattr(config, "layer_types", None) or ()
    return [config.sliding_window for kind in kinds if kind == "sliding_attention"]


def cache_bytes(network: Any, keys: int) -> int:
    """Bytes of so many tokens' keys and values; sliding layers read no more than their windows."""
    model = Model(name="network", **facts_of_config(network.config.to_dict()))
    return int(model.kept_numbers(keys) * network.dtype.itemsize)


def read_bytes(network: Any) -> int:
    """Bytes of the weights that each token reads: all but those of the embedding, unless it is the head too."""
    embedding, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    total = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    return int(total - (0 if embedding is head else embedding.numel() * embedding.element_size()))


def matrix_parameters(network: Any) -> int:
    """Parameters that multiply every token of a text: all but those of embedding and head."""
    ends = {id(each.weight): each.weight for each in (network.get_input_embeddings(), network.get_output_embeddings())}
    return int(sum(each.numel() for each in network.parameters()) - sum(each.numel() for each in ends.values()))
