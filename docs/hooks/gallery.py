"""Make the gallery of all registered methods from their docstrings, with a picture of each."""

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docstrings
import numpy as np
from matplotlib.figure import Figure
from mkdocs.structure.files import File
from pictures import drawn

import lexbench
from lexbench.core import registry
from lexbench.core.attention import Attention, seen_distances
from lexbench.core.method_key import MethodKey
from lexbench.core.model import Model
from lexbench.kernels.reference import first_change
from lexbench.methods import export
from lexbench.methods.composition import read_method
from lexbench.report.plots import style
from lexbench.report.show import plots

MODEL = Model(
    name="A model like Llama 2",
    path="model",
    trained_length=4096,
    head_dim=128,
    rope_base=10_000.0,
    layers=32,
    heads=32,
    kv_heads=32,
    vocabulary=32_000,
)
LENGTH = 16_384
GROUPS = {
    "Which keys are seen": {"mask"},
    "Distances": {"remap"},
    "Heads and passes": {"head_ratios", "mixture"},
    "Queries": {"query_scale"},
    "Caches": {"cache"},
    "Frequencies": {"inv_freq", "scale", "dynamic", "keep_first"},
}
"""Groups of methods by what they change; a method belongs to the first group with one of its slots."""
ORDER = ("The baseline", "Frequencies", "Queries", "Distances", "Which keys are seen", "Heads and passes", "Caches")


def on_files(files: Any, config: Any) -> Any:
    """Add the page and its pictures to the site."""
    files.append(File.generated(config, "gallery/methods.md", content=methods_page()))
    for name in registry.registered_names("method"):
        files.append(File.generated(config, f"gallery/method-{name}.svg", content=method_picture(name)))
        files.append(File.generated(config, f"gallery/method-{name}-small.svg", content=method_glance(name)))
    return files


def methods_page() -> str:
    """The page: all registered methods, grouped by what they change."""
    known = {name: _group(name) for name in registry.registered_names("method")}
    ordered = [name for group in ORDER for name in known if known[name] == group]
    lines = [
        "# Gallery of methods\n",
        f"All {len(known)} registered methods with their default parameters, grouped by what they change. They are "
        f"drawn for a model trained at {MODEL.trained_length} tokens ({MODEL.head_dim} dimensions per head, base "
        f"{MODEL.rope_base:.0f}: Llama 2's) and is used at {LENGTH}. Text and pictures are made from the code at "
        "each build of this site. In formulas theta_p is the model's own b^(-2p/d), i and j are the positions of "
        "query and key, and L is the trained length.\n",
        *_cards(ordered),
        "The small pictures show one of three things: how many times slower each pair rotates (fast pairs left, 1 to 8 "
        "times, in powers of two); the factor of each query; or, with keys across and queries down, the distance at "
        "which a query sees a key (bright: far; grey: not seen).\n",
        "*Inside* says whether the method leaves the model unchanged up to its trained length if the parameters follow "
        "the length of each cell. A method that is deployed for long texts with one fixed factor also changes short "
        "ones ([why that matters](../reading.md#the-price-inside-the-trained-length)). The last three columns say "
        "what `lexbench export` can express exactly.\n",
        *_overview(ordered),
    ]
    for group in ORDER:
        lines += [f"\n## {group}\n", *(_method(name) for name in ordered if known[name] == group)]
    return "\n".join(lines)


def _cards(names: list[str]) -> Iterator[str]:
    yield '<div class="gallery">'
    for name in names:
        yield f'<a href="#{name}"><img src="method-{name}-small.svg" alt="" loading="lazy"><span>{name}</span></a>'
    yield "</div>\n"


@functools.cache
def _built(name: str) -> Any:
    return read_method({**registry.read_named_config("method", name), "name": name})[1]


def _slots(name: str) -> list[str]:
    parts = _built(name).attention(MODEL, LENGTH).parts()
    return list(dict.fromkeys(slot for part in parts for slot in part.slots()))


def _group(name: str) -> str:
    return next((group for group, slots in GROUPS.items() if slots & set(_slots(name))), "The baseline")


def _overview(names: list[str]) -> Iterator[str]:
    yield "| method | changes | inside | transformers | vLLM | llama.cpp |"
    yield "| --- | --- | --- | :-: | :-: | :-: |"
    for name in names:
        changed = ", ".join(f"`{slot}`" for slot in _slots(name)) or "nothing"
        exports = " | ".join(_exported(name, target) for target in export.EXPORT_TARGETS)
        yield f"| [{name}](#{name}) | {changed} | {_inside(name)} | {exports} |"
    yield ""


def _inside(name: str) -> str:
    trained = MODEL.trained_length
    attention = _built(name).attention(MODEL, trained)
    if attention.keepings:
        return "changed behind prompts"
    changed = first_change(attention, MODEL, trained)
    if changed is None:
        return "unchanged"
    return "changed" if changed == 1 else f"changed past {changed // 2}"


def _exported(name: str, target: str) -> str:
    try:
        export.as_data(_built(name), name, MODEL, LENGTH, target)
    except lexbench.Refused:
        return "–"
    return "yes"


def _method(name: str) -> str:
    cls = type(_built(name))
    return (
        f"### {name}\n\n{docstrings.markdown(cls)}\n\n"
        f"![What {name} does to {MODEL.name} at {LENGTH} tokens](method-{name}.svg){{ .drawing loading=lazy }}\n\n"
        f"Measure it: `lexbench run method={name}`. Print these numbers: `lexbench show model=llama2 method={name} "
        f"length={LENGTH}`. Code: `{Path(inspect.getfile(cls)).relative_to(registry.PACKAGE_FOLDER.parent)}`.\n"
    )


@functools.cache
def method_picture(name: str) -> bytes:
    """The picture of `lexbench show --plot`."""
    attention = _built(name).attention(MODEL, LENGTH)
    return drawn(lambda file: plots.plot_attention(MODEL, MethodKey.of_method(name), attention, LENGTH, file))


@functools.cache
def method_glance(name: str) -> bytes:
    """A small picture of the first slot that the method changes, without text."""
    attention = _built(name).attention(MODEL, LENGTH)

    def draw(file: Path) -> None:
        figure = Figure(figsize=(1.8, 1.2), layout="constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        for part in attention.mixture or attention.parts()[:1]:
            _glance(axes, part)
        style.save_figure(figure, file.with_suffix(""))

    return drawn(draw)


def _glance(axes: Any, part: Attention) -> None:
    if part.remap is not None or part.mask is not None:
        places = np.linspace(0, LENGTH - 1, 96).astype(np.int64)
        seen = seen_distances(part.remap, places, places)
        if part.mask is not None:
            seen[~part.mask.allowed(places, places)] = np.nan
        axes.imshow(np.tri(len(places)) * 0.2, cmap="Greys", vmin=0, vmax=1)
        axes.imshow(seen, cmap="cividis", vmin=0, vmax=LENGTH, interpolation="nearest")
    elif part.head_ratios is not None:
        axes.bar(range(len(part.head_ratios.ratios)), part.head_ratios.ratios, color=style.series_style(1)["color"])
    elif part.query_scale is not None:
        places = np.arange(0, LENGTH, 64)
        axes.plot(places, part.query_scale(places), color=style.series_style(1)["color"])
        axes.axhline(1.0, color="0.6", linewidth=0.8)
    else:
        own = MODEL.inv_freq()
        used = own if part.inv_freq is None else part.inv_freq
        slower = np.log2(own / np.where(used > 0, used, np.nan))
        axes.plot(slower, color=style.series_style(1)["color"])
        axes.axhline(0.0, color="0.6", linewidth=0.8)
        axes.set_ylim(-1.0, 3.2)
        axes.set_xlim(0, len(own))
