"""How often `lexbench identify` names what was planted.

    python -m tools.identify --smollm2 PACK
    python -m tools.identify --smollm2 PACK --next-tokens 20

Each setup is planted by a way that lexbench has no part in: an edited config.json, or permuted weights, opened by
transformers alone, which reads the pack's texts; in float32, in bfloat16, and with weights and activations of all
linear layers in 8 bits (weights by channel, activations by token). The pack is made by lexbench with the unedited
checkpoint.

Five checkpoints: the embedded lexlet (trained, Llama), SmolLM2 (real, Llama; only with its pack, which takes minutes to
make), and tiny random models of Gemma 3 (two kinds of layers), Qwen3 with YaRN in its config (norms of queries and
keys) and GPT-NeoX (a quarter of the head rotates), all with lexlet's tokenizer.

With `--next-tokens` the tests' own server gives no log-probabilities of a prompt, and those of so many likeliest next
tokens: by completions in text, or with `--chat` in messages.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core import registry
from lexbench.core.model import Model
from lexbench.parts.serving.identify import decide, identify, pack
from lexbench.parts.serving.identify.make import make_pack
from lexbench.runner.backend_pool import backend_for_job
from tests.backends import scripted
from tests.parts.serving.plain_server import PlainServer

LEXLET = locate_checkpoint("lexbench:lexlet")
PRECISIONS = ("float32", "bfloat16", "8 bits")
Change = dict[str, Any] | Callable[[Any], None]
"""Entries of config.json, or what is done to the loaded network."""
Planted = list[tuple[str, Change, str]]
"""What was done, how, and the label of the setup; `none of these` for what the pack does not hold."""
NONE = identify.NO_SETUP_VERDICT


def rope(kind: str, base: float = 10_000.0, **more: Any) -> dict[str, Any]:
    """The entry of config.json."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, **more}, "rope_theta": None}


def yarn(factor: float, original: int, base: float = 10_000.0, **more: Any) -> dict[str, Any]:
    """YaRN in config.json."""
    return rope("yarn", base, factor=factor, original_max_position_embeddings=original, **more)


def swapped(network: Any) -> None:
    """Pairs of neighbours rotate: rows of the projections, and norms of heads, in another order."""
    for layer in network.model.layers:
        attention = layer.self_attn
        dims = attention.head_dim
        order = torch.arange(dims).reshape(dims // 2, 2).T.flatten()  # where a half reads what was a neighbour
        for part in (attention.q_proj, attention.k_proj):
            rows = torch.arange(part.weight.shape[0]).reshape(-1, dims)[:, order].flatten()
            part.weight.data = part.weight.data[rows].clone()
        for norm in ("q_norm", "k_norm"):
            if hasattr(attention, norm):
                weight = getattr(attention, norm).weight
                weight.data = weight.data[order].clone()


def noisy(network: Any) -> None:
    """Weights of another training: each moves by a tenth of its spread."""
    torch.manual_seed(1)
    for weight in network.parameters():
        if weight.dim() > 1:
            weight.data += 0.1 * weight.data.std() * torch.randn_like(weight)


def llama(original: int, base: float, dims: int) -> Planted:
    """What a server may make of a Llama with plain RoPE."""
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    return [
        ("unchanged", {}, "plain"),
        ("linear, factor 2", rope("linear", base, factor=2.0), "linear 2"),
        ("linear, factor 4", rope("linear", base, factor=4.0), "linear 4"),
        ("NTK, factor 4, as a base", rope("default", base * 4 ** (dims / (dims - 2))), "NTK 4"),
        ("YaRN, factor 4", yarn(4.0, original, base), "YaRN 4"),
        ("YaRN, factor 8", yarn(8.0, original, base), "YaRN 8"),
        (
            "YaRN, factor 4, attention factor dropped",
            yarn(4.0, original, base, attention_factor=1.0),
            "YaRN 4 without attention factor",
        ),
        ("llama3, factor 8", rope("llama3", base, factor=8.0, **llama3), "llama3 8"),
        ("base a percent above", rope("default", 1.01 * base), "base a percent above"),
        ("base a percent below", rope("default", base / 1.01), "base a percent below"),
        ("base 500000", rope("default", 500_000.0), "base 500000"),
        ("pairs of neighbours", swapped, "wrong pairs rotate"),
        ("linear, factor 3", rope("linear", base, factor=3.0), NONE),
        ("weights of another training", noisy, NONE),
    ]


def window(size: int) -> dict[str, Any]:
    """A window in config.json, as Mistral reads it."""
    return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": size}


def gemma3(**full: Any) -> dict[str, Any]:
    """RoPE of the layers that see all keys."""
    kinds = {"sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    return {"rope_parameters": {**kinds, "full_attention": {"rope_type": "default", "rope_theta": 1e6, **full}}}


ALIKE = {"rope_type": "default", "rope_theta": 1e6}
TINY: dict[str, tuple[dict[str, Any], Planted]] = {
    "gemma3_text": (
        {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4}
        | gemma3(),
        [
            ("unchanged", {}, "plain"),
            ("linear, factor 8, in the global layers", gemma3(rope_type="linear", factor=8.0), "linear 8"),
            (
                "layer types lost: all as the global ones",
                {"rope_parameters": {"sliding_attention": ALIKE, "full_attention": ALIKE}},
                "layer types lost: all rotate as full_attention",
            ),
            (
                "global base lost",
                gemma3(rope_theta=10_000.0),
                "layer types lost: all rotate as sliding_attention",
            ),
            ("global base a percent above", gemma3(rope_theta=1.01e6), "base a percent above"),
        ],
    ),
    "qwen3": (
        {"num_hidden_layers": 4} | yarn(4.0, 256, 1e6),
        [
            ("unchanged", {}, "as its config says"),
            ("YaRN configured and not applied", rope("default", 1e6), "plain (scaling not applied)"),
            ("attention factor dropped", yarn(4.0, 256, 1e6, attention_factor=1.0), "YaRN 4 without attention factor"),
            ("YaRN, factor 8 after an update", yarn(8.0, 256, 1e6), "YaRN 8"),
            ("linear in place of YaRN", rope("linear", 1e6, factor=4.0), "linear 4"),
            ("base lost", yarn(4.0, 256, 10_000.0), "base 10000"),
            ("pairs of neighbours", swapped, "wrong pairs rotate"),
        ],
    ),
    "gpt_neox": (
        {"num_hidden_layers": 4, **rope("default", partial_rotary_factor=0.25)},
        [
            ("unchanged", {}, "plain"),
            ("linear, factor 2", rope("linear", factor=2.0, partial_rotary_factor=0.25), "linear 2"),
            ("base 500000", rope("default", 500_000.0, partial_rotary_factor=0.25), "base 500000"),
            ("the whole head rotates", rope("default", partial_rotary_factor=1.0), NONE),
        ],
    ),
}
SIZES = {
    **{"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024, "initializer_range": 0.15},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "tie_word_embeddings": True},
}
"""Of the tiny models."""


def tiny(kind: str, folder: Path) -> Path:
    """A folder with a tiny random model, and lexlet's tokenizer."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **TINY[kind][0]})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(LEXLET / name, folder)
    return folder


def eight_bits(rows: torch.Tensor) -> torch.Tensor:
    """Each row in 127 steps to either side of 0, as servers keep weights by channel and activations by token."""
    steps = rows.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
    return torch.round(rows / steps) * steps


def opened(folder: Path, change: Change, precision: str) -> Any:
    """A checkpoint with a change, opened by transformers alone."""
    content = json.loads((folder / "config.json").read_text())
    if not callable(change):
        content = {key: value for key, value in {**content, **change}.items() if value is not None}
    with tempfile.TemporaryDirectory() as name:
        for file in folder.iterdir():
            if file.name != "config.json":
                (Path(name) / file.name).symlink_to(file)
        (Path(name) / "config.json").write_text(json.dumps(content))
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        network: Any = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype, local_files_only=True)
    network.eval()
    if callable(change):
        change(network)
    if precision == "8 bits":
        for module in network.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight = torch.nn.Parameter(eight_bits(module.weight.data), requires_grad=False)
                module.register_forward_pre_hook(lambda module, given: (eight_bits(given[0]), *given[1:]))
    return network


def served(folder: Path, change: Change, precision: str, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """[texts, length - 1] nats of a checkpoint with a change."""
    network, rows = opened(folder, change, precision), []
    with torch.inference_mode():
        for text in torch.from_numpy(tokens):
            logits = network(input_ids=text[None], use_cache=False).logits[0, :-1].float()
            rows.append(torch.nn.functional.cross_entropy(logits, text[1:], reduction="none").double().numpy())
    return np.stack(rows)


@dataclass
class PlantedServer(PlainServer):
    """A server of a network that is open."""

    given: Any = None

    def open_network(self) -> Any:
        """The network, with transformers' own attention."""
        return self.given


def kept(file: Path | None, *asked: Any) -> NDArray[np.float64]:
    """What `served` gives, from a file where it is there."""
    if file is not None and file.exists():
        return np.load(file)  # type: ignore[no-any-return]
    found = served(*asked)
    if file is not None:
        np.save(file, found)
    return found


@dataclass(frozen=True)
class Family:
    """A checkpoint, its pack, and what is planted in it."""

    name: str
    folder: Path
    model: Model
    reference: pack.ReferencePack
    planted: Planted
    size: str
    """Of the pack, and the seconds that it took, in words."""


def families(asked: argparse.Namespace, scratch: Path) -> Iterator[Family]:
    """Each checkpoint that is asked about."""

    def made(name: str, folder: Path, planted: Planted, length: int, n: int, trained: int | None = None) -> Family:
        if asked.chat:
            folder = talking(folder, scratch / "talking" / folder.name)
        stated = {"path": str(folder), **({"trained_length": trained} if trained else {})}
        model, out = read_model({"name": folder.name, **stated}), scratch / "pack.npz"
        begun = time.monotonic()
        backend = {**registry.read_named_config("backend", "hf"), "name": "hf", "chat": asked.chat}
        # Where next tokens tell, their prefixes have the room of more texts.
        n = 16 if asked.next_tokens else n
        found = make_pack(model=model, corpus=None, backend=backend, length=length, n=n, seed=0, out=out)
        size = f"{out.stat().st_size / 1e3:.0f} KB in {time.monotonic() - begun:.0f} s"
        return Family(name, folder, model, found, planted, size)

    if asked.only in (None, "lexlet"):
        whole = [*llama(256, 10_000.0, 32), ("window of 128 tokens", window(128), "window of 128 tokens")]
        yield made("lexlet", LEXLET, whole, 512, 16)
    for kind, (_, planted) in TINY.items():
        if asked.only in (None, kind):
            # Gemma's global layers turn slowly.
            length, n = (1024, 28) if kind == "gemma3_text" else (512, 32)
            yield made(f"{kind}, random", tiny(kind, scratch / kind), planted, length, n, 256)
    if asked.smollm2 is not None and asked.only in (None, "smollm2"):
        model = read_model({**registry.read_named_config("model", "smollm2"), "name": "smollm2"})
        wanted, size = llama(8192, 100_000.0, 64), f"{asked.smollm2.stat().st_size / 1e3:.0f} KB"
        folder = locate_checkpoint(str(model.path))
        yield Family("SmolLM2", folder, model, pack.read_pack(asked.smollm2), wanted, size)


def talking(folder: Path, to: Path) -> Path:
    """A copy of a checkpoint with a chat template, as the tests' own server writes it."""
    shutil.copytree(folder, to)
    settings = json.loads((to / "tokenizer_config.json").read_text())
    template = "<user>{{ messages[0]['content'] }}<assistant>"
    (to / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    return to


def first(reference: pack.ReferencePack, texts: int) -> pack.ReferencePack:
    """A pack of the targets of the first texts, without longer ones."""
    cut = {name: getattr(reference, name)[:texts] for name in ("tokens", "written")}
    more = {name: getattr(reference, name)[:, :texts] for name in ("nll", "noise")}
    return replace(reference, **cut, **more, longer=None, far=None, prefixes=None)


def by_prompts(
    family: Family, done: str, change: Change, precision: str, asked: argparse.Namespace
) -> identify.Identification:
    """What likelihoods of the texts tell."""
    reference = family.reference if asked.texts is None else first(family.reference, asked.texts)
    file = asked.kept and asked.kept / f"{family.name}, {done}, {precision}.npy".replace(" ", "_")
    nats = kept(file, family.folder, change, precision, reference.tokens)[: asked.texts]
    found = identify.identify(reference, reference.target_nats(nats))
    if longer := identify.longer_texts_to_decide(reference, found):
        file = file and file.with_stem(f"{file.stem},_longer")
        nats = kept(file, family.folder, change, precision, longer.tokens)
        found = identify.identify(longer, longer.target_nats(nats))
    return found


def by_next_tokens(
    family: Family, change: Change, precision: str, asked: argparse.Namespace
) -> identify.Identification:
    """What the tests' own server tells, which gives the likeliest next tokens only."""
    server = PlantedServer(
        form="chat" if asked.chat else "texts",
        most=asked.next_tokens,
        tokenizer=load_tokenizer(family.folder, family.model.bos),
        given=opened(family.folder, change, precision),
    )
    with scripted.serving(server.answer) as serving:
        more = {"name": "openai", "url": serving.url, "concurrency": 1, "retries": 0, "chat": asked.chat}
        config = {**registry.read_named_config("backend", "openai"), **more}
        return decide.identify_served(family.reference, lambda length: backend_for_job(family.model, config, length))


def right(reference: pack.ReferencePack, found: identify.Identification, label: str) -> str:
    """right; `cannot be told` where the planted setup is among those said to be alike; WRONG."""
    wanted = label if label == NONE else identify.find_setup_label(reference, label)
    if found.verdict == wanted and not (found.alike or found.odd or found.cut):
        return "right"
    return "cannot be told" if wanted in (found.verdict, *found.alike) else "WRONG"


def _said(verdict: str, found: identify.Identification) -> str:
    also = [*(f"; or {each}" for each in found.alike), *(f"; but {each}" for each in (*found.odd, found.cut) if each)]
    return f"{verdict}: {found.verdict}{''.join(also)} ({found.why})"


@dataclass
class Count:
    """Verdicts of a checkpoint, and what each took."""

    planted: int
    right: Counter[str] = field(default_factory=Counter)
    """By precision."""
    others: Counter[str] = field(default_factory=Counter)
    """By verdict."""
    seconds: list[float] = field(default_factory=list)

    def row(self, name: str, precisions: list[str]) -> str:
        """A row of the table of counts."""
        cells = [str(self.planted), *(f"{self.right[each]} of {self.planted}" for each in precisions)]
        cells += [str(self.others["cannot be told"]), str(self.others["WRONG"]), f"{max(self.seconds):.0f}"]
        return f"| {name} | {' | '.join(cells)} |"


def main(given: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2", type=Path, help="a pack of SmolLM2")
    parser.add_argument("--only", help="one of lexlet, smollm2 and the types of tiny models")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="only these")
    parser.add_argument("--texts", type=int, help="only the first so many texts of each pack, and no longer ones")
    parser.add_argument("--kept", type=Path, help="folder with what the checkpoints gave, read again or filled")
    parser.add_argument("--next-tokens", type=int, help="ask a server that tells so many likeliest next tokens only")
    parser.add_argument("--chat", action="store_true", help="with --next-tokens: ask it in messages")
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"| checkpoint | planted | {' | '.join(asked.precisions)} |\n| --- | --- |{' --- |' * len(asked.precisions)}")
    counts, sizes = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for family in families(asked, Path(scratch)):
            sizes.append(f"{family.name} {family.size}")
            count = counts[family.name] = Count(len(family.planted))
            for done, change, label in family.planted:
                verdicts = []
                for precision in asked.precisions:
                    begun = time.process_time()
                    if asked.next_tokens:
                        found = by_next_tokens(family, change, precision, asked)
                    else:
                        found = by_prompts(family, done, change, precision, asked)
                    count.seconds.append(time.process_time() - begun)
                    verdict = right(family.reference, found, label)
                    count.right[precision] += verdict == "right"
                    count.others[verdict] += 1
                    verdicts.append(verdict if verdict == "right" else _said(verdict, found))
                print(f"| {family.name} | {done} | {' | '.join(verdicts)} |", flush=True)
    heads = ["checkpoint", "planted", *asked.precisions, "cannot be told", "wrong", "CPU seconds at most"]
    print(f"\n| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    print(*(count.row(name, asked.precisions) for name, count in counts.items()), sep="\n")
    print(f"\nPacks: {'; '.join(sizes)}.")


if __name__ == "__main__":
    main()
