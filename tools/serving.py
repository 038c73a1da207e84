"""What the gate says of engines with faults, planted behind a server.

    python -m tools.serving

The engine is transformers with an attention function of its own, serving lexlet with NTK of factor 2 through vLLM's
dialect of OpenAI's interface. A healthy one writes the baseline by `lexbench run` and `check --update`. Each fault, and
each healthy variant (other precisions, other order of sums, chunks), is then run and checked by the same commands, as a
deployment after an update would be, and asked by `lexbench identify` whether it still turns by NTK of factor 2.
Caught: an exit code of either other than 0. Faults of caches are planted as what they do:
the engine reads other tokens than it was sent.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.commands import main as program
from tests.backends import scripted

LEXLET = locate_checkpoint("lexbench:lexlet")
BASE = 10_000 * 2 ** (32 / 30)
"""NTK of factor 2."""
LENGTHS = (128, 384)
N = 24
Tokens = list[int]


@dataclass
class Engine:
    """A healthy engine; a fault changes its fields."""

    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": BASE})
    dtype: torch.dtype = torch.float32
    weights: Callable[[Any], None] = lambda network: None
    """Changes the loaded network."""
    edit: Callable[["Engine", Tokens], tuple[Tokens, list[int]]] = lambda engine, tokens: (
        tokens,
        list(range(len(tokens))),
    )
    """What is read in place of a prompt, and from which place of the prompt each token is; -1: from none."""
    places: Callable[[Tensor], Tensor] = lambda places: places
    """Positions of tokens."""
    keys: Callable[[Tensor], Tensor] = lambda stored: stored
    """What the cache gives back of keys and values."""
    seen: Callable[[Tensor, Tensor], Tensor] = lambda i, j: j <= i
    """[queries, keys] which keys are seen."""
    logits: Callable[[Tensor], Tensor] = lambda logits: logits
    next: Callable[["Engine", Tensor, Tokens], int] = lambda engine, logits, new: int(logits.argmax())
    """The next token, of the logits and the tokens written so far."""
    decoding: int = 0
    """Added to the positions of new tokens."""
    room: int | None = None
    """Most tokens that it writes."""
    seed: int = 0
    last: Tokens = field(default_factory=list)
    """The prompt before."""

    def __post_init__(self) -> None:
        self.network = self.open_network()
        self.rng = torch.Generator().manual_seed(self.seed)
        self.lock = threading.Lock()
        self.weights(self.network)

    def open_network(self) -> Any:
        """Lexlet with its attention replaced."""
        config = transformers.AutoConfig.from_pretrained(LEXLET)
        config.rope_parameters = self.rope
        network: Any = transformers.AutoModelForCausalLM.from_pretrained(
            LEXLET, config=config, dtype=self.dtype, local_files_only=True
        ).eval()
        AttentionInterface.register("engine", self._attend)
        AttentionMaskInterface.register("engine", lambda *unused, **named: None)
        network.set_attn_implementation("engine")
        return network

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **unused: Any
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (self.keys(each).repeat_interleave(groups, dim=1) for each in (key, value))
        total = key.shape[2]
        i, j = torch.arange(total - query.shape[2], total)[:, None], torch.arange(total)[None]
        scores = (query @ key.mT * scaling).float().masked_fill(~self.seen(i, j), -1e30)
        return (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous(), None

    def read(self, tokens: Tokens) -> tuple[Tensor, Any, list[int]]:
        """[T, V] logits of what is read in place of a prompt, the cache, and where each token is from."""
        read, sources = self.edit(self, tokens)
        self.last = tokens
        places = self.places(torch.arange(len(read)))[None]
        found = self.network(input_ids=torch.tensor([read]), position_ids=places, use_cache=True)
        return self.logits(found.logits[0].float()), found.past_key_values, sources

    def scored(self, tokens: Tokens) -> list[Any]:
        """vLLM's log-probabilities of a prompt."""
        logits, _, sources = self.read(tokens)
        chances = logits.log_softmax(-1)
        rows = {source: place - 1 for place, source in enumerate(sources) if place and source > 0}
        known = [float(chances[rows[place], tokens[place]]) if place in rows else -8.0 for place in range(len(tokens))]
        return [None, *({str(tokens[p]): {"logprob": min(known[p], 0.0), "rank": 1}} for p in range(1, len(tokens)))]

    def written(self, tokens: Tokens, room: int, ends: Sequence[int]) -> Tokens:
        """Greedy continuation."""
        logits, cache, sources = self.read(tokens)
        new: Tokens = []
        while len(new) < min(room, self.room or room):
            new.append(self.next(self, logits[-1], new))
            if new[-1] in ends:
                break
            place = torch.tensor([[len(sources) + len(new) - 1 + self.decoding]])
            found = self.network(
                input_ids=torch.tensor([new[-1:]]), position_ids=place, past_key_values=cache, use_cache=True
            )
            logits = self.logits(found.logits[0].float())
        return new

    def answer(self, body: scripted.Body) -> scripted.Reply:
        """To a completion, as vLLM does."""
        tokens = body["prompt"]
        if isinstance(tokens, str):  # it has no tokenizer
            return 400, {"error": {"message": "prompt must be ids"}}
        with self.lock, torch.inference_mode():
            choice: scripted.Body = {}
            if body.get("return_token_ids"):
                ends = body.get("stop_token_ids", [])
                ids = self.written(tokens, body["max_tokens"], ends)
                choice = {"token_ids": ids, "finish_reason": "stop" if ids and ids[-1] in ends else "length"}
                if body.get("logprobs") and ids:
                    chances = self.read(tokens)[0][-1].log_softmax(-1)
                    choice["logprobs"] = {"token_logprobs": [float(chances[ids[0]])]}
            if "prompt_logprobs" in body:
                choice["prompt_logprobs"] = self.scored(tokens)
        return 200, scripted.completion(len(tokens), choice, system_fingerprint="vllm-0.30.0-abc")


def rope(kind: str, base: float = BASE, **more: float) -> dict[str, Any]:
    """Parameters of another RoPE."""
    return {"rope": {"rope_type": kind, "rope_theta": base, **more}}


def edited(change: Callable[[Engine, Tokens], list[tuple[int, int]]]) -> dict[str, Any]:
    """An edit, as pairs of token and place in the prompt."""
    return {"edit": lambda engine, tokens: tuple(map(list, zip(*change(engine, tokens), strict=True)))}


def whole(tokens: Tokens) -> list[tuple[int, int]]:
    """The prompt unchanged."""
    return [(token, place) for place, token in enumerate(tokens)]


def before(size: int) -> Callable[[Engine, Tokens], list[tuple[int, int]]]:
    """The first tokens are those of the prompt before: its states are taken for this one's."""

    def change(engine: Engine, tokens: Tokens) -> list[tuple[int, int]]:
        old = engine.last[:size] if len(engine.last) >= size < len(tokens) else tokens[:size]
        return [(token, place) for place, token in enumerate([*old, *tokens[size:]])]

    return change


def bits(count: int, dims: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Rounding of keys and values with one scale for all of these dimensions."""

    def rounded(stored: Tensor) -> Tensor:
        steps = stored.abs().amax(dims, keepdim=True) / (2 ** (count - 1) - 1)
        found: Tensor = torch.round(stored / steps) * steps
        return found

    return rounded


def of_weights(change: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    """A change of all matrices of the layers."""

    def done(network: Any) -> None:
        for name, weight in network.named_parameters():
            if "layers" in name and weight.dim() == 2:
                weight.data = change(name, weight.data)

    return {"weights": done}


def neighbours(network: Any) -> None:
    """Pairs of neighbours rotate in place of halves."""
    order = torch.arange(32).reshape(16, 2).T.flatten()
    for layer in network.model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            part.weight.data = part.weight.data.reshape(-1, 32, 256)[:, order].reshape(-1, 256).clone()


def skipped(network: Any) -> None:
    """One layer does nothing."""
    layer = network.model.layers[2]
    for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
        part.weight.data.zero_()


def swapped(network: Any) -> None:
    """The shards of two devices are joined in the wrong order: halves of the output of attention."""
    for layer in network.model.layers:
        layer.self_attn.o_proj.weight.data = layer.self_attn.o_proj.weight.data.roll(128, dims=1)


def adapter(network: Any) -> None:
    """Another tenant's low-rank adapter is on."""
    torch.manual_seed(0)
    for layer in network.model.layers:
        weight = layer.self_attn.v_proj.weight
        one, two = torch.randn(weight.shape[0], 4), torch.randn(4, weight.shape[1])
        weight.data += 0.5 * weight.data.norm() * (one @ two) / (one @ two).norm()


def sampled(engine: Engine, logits: Tensor, new: Tokens) -> int:
    """At temperature 1."""
    return int(torch.multinomial(logits.softmax(-1), 1, generator=engine.rng))


def drafted(engine: Engine, logits: Tensor, new: Tokens) -> int:
    """A draft's token is taken unchecked, three times in ten: the second likeliest."""
    taken = float(torch.rand(1, generator=engine.rng)) < 0.3
    return int(logits.topk(2).indices[1 if taken else 0])


def penalised(engine: Engine, logits: Tensor, new: Tokens) -> int:
    """Tokens of the prompt and the answer are divided by 1.3."""
    seen = torch.tensor(sorted({*engine.last, *new}))
    found = logits.clone()
    found[seen] = torch.where(found[seen] > 0, found[seen] / 1.3, found[seen] * 1.3)
    return int(found.argmax())


class HostTier:
    """Caches of whole prompts: a few on the device, others on the host, which restores another prompt's states."""

    def __init__(self, prompts: int) -> None:
        self.prompts = prompts
        self.device: list[Tokens] = []
        self.host: list[Tokens] = []

    def __call__(self, engine: Engine, tokens: Tokens) -> tuple[Tokens, list[int]]:
        """What is read in place of a prompt."""
        read = tokens
        if tokens in self.device:
            self.device.remove(tokens)
        elif tokens in self.host:
            self.host.remove(tokens)
            others = [each for each in self.host if len(each) >= len(tokens)]
            read = [*(others or [tokens])[-1][: len(tokens) - 1], tokens[-1]]
        self.device.append(tokens)
        if len(self.device) > self.prompts:
            self.host.append(self.device.pop(0))
        return read, list(range(len(read)))


class ResumedPrefix:
    """Caches of prefixes in blocks: the rest of a prompt begins at position 0 again."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.known: list[Tokens] = []

    def __call__(self, engine: Engine, tokens: Tokens) -> tuple[Tokens, list[int]]:
        """The prompt as it is, at the positions that a hit leaves."""
        hit = max((_common(tokens[:-1], each) for each in self.known), default=0) // self.block * self.block
        engine.places = lambda places: torch.where(places < hit, places, places - hit)
        self.known.append(tokens)
        return tokens, list(range(len(tokens)))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the prefix that two prompts share."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def mixed_up(engine: Engine, tokens: Tokens) -> list[tuple[int, int]]:
    """One request in four gets the first half of the one before, as where two of a batch change places."""
    if float(torch.rand(1, generator=engine.rng)) >= 0.25:
        return whole(tokens)
    return before(len(tokens) // 2)(engine, tokens)


FAULTS: dict[str, dict[str, Any]] = {
    "scaling dropped": rope("default", 10_000.0),
    "factor 8 after an update": rope("default", 10_000 * 8 ** (32 / 30)),
    "linear in place of NTK": rope("linear", 10_000.0, factor=2.0),
    "YaRN in place of NTK": rope("yarn", 10_000.0, factor=8.0, original_max_position_embeddings=256),
    "base of another model": rope("default", 1e6),
    "attention factor of 1.3 left over": {
        **rope("yarn", BASE, factor=1.0, original_max_position_embeddings=256, attention_factor=1.3)
    },
    "wrong pairs rotate": {"weights": neighbours},
    "positions begin anew in each chunk of 256": {"places": lambda places: places % 256},
    "positions of new tokens off by 64": {"decoding": 64},
    "all positions in steps of two": {"places": lambda places: places // 2},
    "window of 128 tokens": {"seen": lambda i, j: (j <= i) & (i - j < 128)},
    "mask off by one: the own token is hidden": {"seen": lambda i, j: (j < i) | ((i == 0) & (j == 0))},
    "window off by one: the last token of each block of 16 is hidden": {
        "seen": lambda i, j: (j <= i) & ((j % 16 < 15) | (i == j))
    },
    "blocks of the cache evicted in the middle": {"seen": lambda i, j: (j <= i) & ((j < 32) | (j >= 96) | (i < 128))},
    "keys and values in 4 bits, a scale a token": {"keys": bits(4, (3,))},
    "keys and values in 8 bits, one scale of 64 times the largest": {
        "keys": lambda x: torch.round(x / (s := 64 * x.abs().max() / 127)) * s
    },
    "stale cache: 64 tokens of the prompt before": edited(before(64)),
    "stale cache: 256 tokens of the prompt before": edited(before(256)),
    "prefix cache drops the last block of 16": edited(
        lambda engine, tokens: whole(tokens)[: len(tokens) // 2 - 16] + whole(tokens)[len(tokens) // 2 :]
    ),
    "prompts cut on the left to 96": edited(lambda engine, tokens: whole(tokens)[-96:]),
    "prompts cut in the middle": edited(
        lambda engine, tokens: whole(tokens)[: len(tokens) // 4] + whole(tokens)[-len(tokens) // 4 :]
    ),
    "template twice: 24 tokens of a header before the prompt": edited(
        lambda engine, tokens: [*((token, -1) for token in tokens[:24]), *whole(tokens)]
    ),
    "BOS lost": edited(lambda engine, tokens: whole(tokens)[1:]),
    "BOS twice": edited(lambda engine, tokens: [(tokens[0], -1), *whole(tokens)]),
    "requests of a batch mixed up": edited(mixed_up),
    "speculative decoding takes drafts unchecked": {"next": drafted},
    "sampling in place of greedy": {"next": sampled},
    "penalty on repetition left on": {"next": penalised},
    "answers end after two tokens": {"room": 2},
    "a layer lost": {"weights": skipped},
    "shards joined in the wrong order": {"weights": swapped},
    "another tenant's adapter": {"weights": adapter},
    "weights in 4 bits, a scale a matrix": of_weights(
        lambda name, weight: torch.round(weight / (s := weight.abs().max() / 7)) * s
    ),
}


def noisy(seed: int, size: float) -> Callable[[Tensor], Tensor]:
    """Kernels whose sums are in another order each time."""
    rng = torch.Generator().manual_seed(seed)
    return lambda logits: logits + size * torch.randn(logits.shape, generator=rng)


HEALTHY: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "float64": {"dtype": torch.float64},
    "keys and values in 8 bits, a scale a token": {"keys": bits(8, (3,))},
    "weights in 8 bits, a scale a row": of_weights(
        lambda name, weight: torch.round(weight / (s := weight.abs().amax(1, keepdim=True) / 127)) * s
    ),
    **{f"noise of 0.02 on logits, seed {seed}": {"logits": noisy(seed, 0.02)} for seed in range(10)},
    **{f"bfloat16, noise of 0.05, seed {s}": {"dtype": torch.bfloat16, "logits": noisy(s, 0.05)} for s in range(5)},
}


def words(url: str, folder: Path) -> list[str]:
    """The command that measures a server."""
    lengths = f"lengths=[{','.join(map(str, LENGTHS))}]"
    backend = ["backend=openai", f"backend.url={url}", "backend.retries=0", "backend.serves={name: ntk, factor: 2}"]
    tasks = ["task=[last_segment,passkey]", "corpus=stdlib", lengths, f"n={N}", "price=false"]
    return ["run", "model=lexlet", "method=ntk", "method.factor=2", *tasks, *backend, f"results={folder}"]


def quietly(given: list[str]) -> tuple[int, str]:
    """Exit code of a command, and what it printed; where that is nothing, its error."""
    said, error = StringIO(), StringIO()
    with redirect_stdout(said), redirect_stderr(error):
        code = program.main(given)
    return code, said.getvalue() or error.getvalue()


def write_pack(file: Path, length: int, n: int) -> None:
    """The reference of the engine's checkpoint."""
    words = ["fingerprint", "model=lexlet", "corpus=stdlib", f"length={length}", f"n={n}", "--out", str(file)]
    code, said = quietly(words)
    assert code == 0, said


def served(engine: Engine) -> Any:
    """The engine behind a server, inside a block."""
    return scripted.serving(engine.answer, models=scripted.listing("one", **scripted.VLLM), version="0.30.0")


def named(engine: Engine, reference: Path, advice: bool = False) -> tuple[int, str]:
    """Exit code of `lexbench identify`, and what it says, with what it advises to look for."""
    with served(engine) as server:
        return named_at(server.url, reference, advice=advice)


def named_at(url: str, reference: Path, *words: str, advice: bool = False) -> tuple[int, str]:
    """The same of a server that runs."""
    backend = ["backend=openai", f"backend.url={url}", "backend.retries=0", *words]
    code, said = quietly(["identify", str(reference), "model=lexlet", *backend, "--expect", "NTK 2"])
    if code == 2:
        return code, "refused"
    first, *others = said.split("\n\nnats away")[0].splitlines()
    label = first.split(": the nearest")[0].split(" (")[0].split(": ")[0]
    return code, "; ".join([label, *(line if advice else line.split(": look")[0] for line in others)])


def checked(engine: Engine, folder: Path, baseline: Path) -> tuple[int, str]:
    """Exit code of `lexbench check`, and what was lost where."""
    with served(engine) as server:
        return checked_at(server.url, folder, baseline)


def checked_at(url: str, folder: Path, baseline: Path) -> tuple[int, str]:
    """The same of a server that runs; without a baseline it is written."""
    code, said = quietly(words(url, folder))
    if code:
        return code, "the run ends with exit code 2"
    if not baseline.exists():
        return quietly(["check", str(folder), "--baseline", str(baseline), "--update"])
    code, said = quietly(["check", str(folder), "--baseline", str(baseline)])
    lost = [line for line in said.splitlines() if line.startswith("|")][2:]
    marks = ("LOST", "?", "~")
    return code, "; ".join(" ".join(line.split()) for line in lost if any(mark in line for mark in marks)).replace(
        "|", ","
    ).strip(", ")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="engines with this in their name")
    parser.add_argument("--kind", choices=("fault", "healthy"), help="only these engines")
    parser.add_argument("--part", default="0/1", help="every K-th engine from the I-th on, I/K")
    parser.add_argument("--gate", choices=("check", "identify"), help="only this half of the gate")
    asked = parser.parse_args()
    first, step = map(int, asked.part.split("/"))
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    begun, spent = time.monotonic(), {"check": [0.0], "identify": [0.0]}
    print(
        "| engine | check | identify | what check saw lost, by task, at 128 and 384 tokens |\n| --- | --- | --- | --- |"
    )
    counts: dict[str, list[bool]] = {"fault": [], "healthy": []}
    with tempfile.TemporaryDirectory() as scratch:
        baseline, reference = Path(scratch) / "baseline.json", Path(scratch) / "pack.npz"
        if asked.gate != "identify":
            assert checked(Engine(), Path(scratch) / "healthy", baseline)[0] == 0, "a baseline"
        if asked.gate != "check":
            made = ["fingerprint", "model=lexlet", "corpus=stdlib", "length=256", "n=8", "--out", str(reference)]
            assert quietly(made)[0] == 0, "a pack"
        for kind, engines in (("fault", FAULTS), ("healthy", HEALTHY)):
            for place, (name, fields) in enumerate(engines.items()):
                if asked.only not in name or place % step != first or asked.kind not in (None, kind):
                    continue
                code, verdict, lost, other, label, at = 0, "-", "", 0, "-", time.process_time()
                if asked.gate != "identify":
                    code, lost = checked(Engine(**fields, seed=place), Path(scratch) / f"{kind}{place}", baseline)
                    verdict = ("held", "regressed", "not comparable")[code]
                    spent["check"].append(time.process_time() - at)
                at = time.process_time()
                if asked.gate != "check":
                    other, label = named(Engine(**fields, seed=place), reference)
                    spent["identify"].append(time.process_time() - at)
                counts[kind].append(code > 0 or other > 0)
                print(f"| {kind}: {name} | {verdict} | {label} | {lost} |", flush=True)
    faults, healthy = counts["fault"], counts["healthy"]
    print(f"\nCaught: {sum(faults)} of {len(faults)} faults. False alarms: {sum(healthy)} of {len(healthy)}.")
    print(f"{time.monotonic() - begun:.0f} s on {torch.get_num_threads()} thread.")
    most = ", ".join(f"{half} {max(times):.0f} s" for half, times in spent.items())
    print(f"CPU time of one engine and what asks it, at most: {most}.")


if __name__ == "__main__":
    main()
