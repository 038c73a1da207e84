"""Make the gallery of encodings from their docstrings, with a picture of each."""

import functools
import inspect
from pathlib import Path
from typing import Any

import docstrings
import numpy as np
from matplotlib.figure import Figure
from mkdocs.structure.files import File
from pictures import drawn

from lexbench.core import objects, registry
from lexbench.report.plots import style

FAR = 1024
"""Number of distances in a picture."""


def on_files(files: Any, config: Any) -> Any:
    """Add the page and its pictures to the site."""
    files.append(File.generated(config, "gallery/encodings.md", content=encodings_page()))
    for name in all_encodings():
        files.append(File.generated(config, f"gallery/encoding-{name}.svg", content=encoding_picture(name)))
    return files


def all_encodings() -> dict[str, type]:
    """Class of each encoding in lexbench/parts/lab/configs/encoding, by name."""
    return {
        name: objects.class_of(registry.read_named_config("encoding", name), "encoding")
        for name in registry.registered_names("encoding")
    }


def encodings_page() -> str:
    """The page: all encodings for training the reference decoder."""
    known = all_encodings()
    lines = [
        "# Gallery of encodings\n",
        "A model is *trained* with its encoding. An encoding is part of a model, never a method: methods change a "
        "trained model, and apply on top where they fit. Encodings are small torch modules of the reference decoder "
        "(`lexbench/parts/lab/native`); [how to add one](../adding.md#an-encoding).\n",
        "Each picture shows the logit of an equal query and key over their distance, in the first of four "
        "layers of eight heads, with the default parameters and the initial weights of seed 0: the effect of the "
        "encoding alone on attention, before any training. One line stands for eight heads that are alike. For "
        "encodings that act on the embeddings, query and key are the vectors of the positions themselves. Gated delta "
        "layers have no logits: shown is the log of what is left of their state.\n",
    ]
    for name, cls in known.items():
        source = (inspect.getdoc(inspect.getmodule(cls)) or "").strip()
        lines += [
            f"## {name}\n\n{docstrings.linked(source)}\n\n{docstrings.markdown(cls)}\n",
            f"![Logit by distance under {name}](encoding-{name}.svg){{ .drawing loading=lazy }}\n",
        ]
    return "\n".join(lines)


@functools.cache
def encoding_picture(name: str) -> bytes:
    """Logits of two equal vectors by distance, with initial weights; one line per head if heads differ."""
    lines = _logits(name)
    alike = np.array_equal(lines, np.broadcast_to(lines[:1], lines.shape), equal_nan=True)

    def draw(file: Path) -> None:
        import matplotlib

        with matplotlib.rc_context(style.MATPLOTLIB_STYLE):
            figure = Figure(figsize=(6.4, 3.0), layout="constrained")
            axes = figure.subplots()
            for head, line in enumerate(lines[:1] if alike else lines):
                said = name if alike else f"head {head + 1}"
                axes.plot(
                    np.arange(len(line)), line, color=style.series_style(head)["color"], linewidth=1.3, label=said
                )
            axes.set(xlabel="distance (tokens)", ylabel="logit", title=f"{name}: logit of two like vectors")
            if not alike:
                axes.set_ylim(*limits(lines))
                axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
            style.save_figure(figure, file.with_suffix(""))

    return drawn(draw)


def limits(lines: Any) -> tuple[float, float]:
    """Ends of the axis of logits, down to -20 at most; half a logit of room keeps small differences of heads small."""
    return max(-20, np.nanmin(lines) - 0.5), np.nanmax(lines) + 0.5


def _logits(name: str) -> Any:
    """Logits [heads, distances] of the last query of FAR tokens, NaN where it sees nothing.

    Query and key are vectors of ones; for encodings that act on the embeddings, the vectors of the positions.
    """
    import torch

    from lexbench.parts.lab.native import build
    from lexbench.parts.lab.native.attend import EncodingAttention
    from lexbench.parts.lab.native.decoder import DecoderShape

    shape = DecoderShape(vocabulary=64, layers=4, width=512, heads=8, kv_heads=8, hidden=512)
    known = inspect.signature(all_encodings()[name]).parameters
    given = {tokens: [0] for tokens in ("separators", "digits") if tokens in known}
    whole = build.build_encoding({"name": name, **given}, shape, FAR).eval()
    whole.initialise(torch.Generator().manual_seed(0))
    tokens = torch.arange(FAR)[None] % 64
    with torch.inference_mode():
        positions, part = whole.positions(tokens, FAR), whole.at(0)
        if hasattr(part, "log_state_left"):  # a state in place of logits
            return part.log_state_left(FAR).numpy()
        ones = torch.ones(1, 8, FAR, 64, dtype=torch.float64) / 8
        zeros = torch.zeros(1, FAR, 512, dtype=torch.float64)
        own = part.layer_input(whole.embed(zeros, tokens, positions), positions).double()
        if own.any():
            ones = ones + own.unflatten(-1, (8, 64)).transpose(1, 2)
        gates = part.gates(zeros.float())
        part = part if gates is None else part.with_gates(gates.double())
        logits = EncodingAttention(part, part.attention, ones, ones, positions).logits(FAR - 1, FAR)
    return logits[0, :, 0].flip(-1).masked_fill(logits[0, :, 0].flip(-1) == -torch.inf, torch.nan).numpy()
