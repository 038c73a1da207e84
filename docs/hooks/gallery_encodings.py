"""The gallery of encodings, made from their docstrings, with a picture of each."""

import functools
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import docstrings
import numpy as np
from matplotlib.figure import Figure
from mkdocs.structure.files import File
from pictures import drawn

from lexbench import encodings
from lexbench.report import figures


def on_files(files: Any, config: Any) -> Any:
    """Add the page and its pictures to the site."""
    files.append(File.generated(config, "gallery/encodings.md", content=encodings_page()))
    for name in all_encodings():
        files.append(File.generated(config, f"gallery/encoding-{name}.svg", content=encoding_picture(name)))
    return files


def all_encodings() -> dict[str, type]:
    """Name to class, of every module of lexbench.encodings."""
    found = {}
    for module in pkgutil.iter_modules(encodings.__path__):
        members = vars(importlib.import_module(f"lexbench.encodings.{module.name}")).values()
        own = [each for each in members if isinstance(each, type) and issubclass(each, encodings.Encoding)]
        found[module.name] = next(each for each in own if each is not encodings.Encoding)
    return dict(sorted(found.items()))


def encodings_page() -> str:
    """All encodings that the reference decoder can be trained with."""
    known = all_encodings()
    lines = [
        "# Gallery of encodings\n",
        "An encoding is what a model is *trained* with. It is part of a model, never a method: methods change a "
        "trained model, and apply on top where they fit. These are small torch modules of the reference decoder "
        "(`lexbench/native`); [how to add one](../adding.md#an-encoding).\n",
        "Each picture shows the logit of a query and a key that are alike (all entries 1, 64 dimensions a head, "
        "divided by 64), over their distance, with the default parameters: what the encoding alone does to "
        "attention.\n",
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
    """Logits of two vectors of ones by distance; a line a head where heads differ."""
    import torch

    cls, far, dim, heads = all_encodings()[name], 1024, 64, 8
    sizes = {"head_dim": dim, "heads": heads}
    encoding = cls(**{key: sizes[key] for key in inspect.signature(cls).parameters if key in sizes})
    positions = torch.arange(far, dtype=torch.float64)
    ones = torch.ones(1, 1, far, dim, dtype=torch.float64)
    queries, keys = encoding.meet(ones, ones, positions)
    logits = (queries[0, 0, -1] @ keys[0, 0].T).flip(0)[None] / dim
    bias = encoding.bias(positions[-1:], positions)
    logits = logits if bias is None else logits + bias[:, 0].flip(1)

    def draw(file: Path) -> None:
        import matplotlib

        with matplotlib.rc_context(figures.STYLE):
            figure = Figure(figsize=(6.4, 3.0), layout="constrained")
            axes = figure.subplots()
            for head, line in enumerate(logits.numpy()):
                said = f"head {head + 1}" if len(logits) > 1 else name
                axes.plot(np.arange(far), line, color=figures.colour(head), linewidth=1.3, label=said)
            axes.set(xlabel="distance (tokens)", ylabel="logit", title=f"{name}: logit of two like vectors")
            if len(logits) > 1:
                axes.set_ylim(-20, 1.5)
                axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
            figures.save(figure, file.with_suffix(""))

    return drawn(draw)
