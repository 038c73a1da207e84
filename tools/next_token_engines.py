"""What `lexbench identify` says of real engines that are asked for next tokens only.

    PYTHON -m tools.next_token_engines ENGINE PACK [--chat TEMPLATE]

ENGINE is one of `transformers` (`transformers serve`), `vllm` (its chat) and `llama.cpp` (llama-cpp-python's server,
with a GGUF file as a converter makes it); PYTHON is one that has this engine. Of each kind of setup that
`tools.identify` plants in lexlet, one is drawn, and the engine serves it. PACK is lexlet's (`lexbench fingerprint
model=lexlet --out PACK`; of a chat with `backend.chat=true`, and with `model.path=` a copy with that chat template).
"""

import argparse
import json
import math
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from lexbench.parts.serving.identify import identify, pack
from tests.parts.serving.vllm.server import EngineServer, VllmServer
from tools import serving
from tools.identify import LEXLET, NONE, Change, Planted, llama, right, window

MAX_MODEL_LEN = 640
HUB_NAME = "planted/lexlet"


def one_of_each_kind(size: int, seed: int = 0) -> Planted:
    """One planted setup of each kind, of those whose names differ in numbers and sides only; `size`: of the window."""
    label = f"window of {size} tokens"
    whole: Planted = [*llama(256, 10_000.0, 32), (label, window(size), label)]
    kinds: dict[tuple[str, bool], Planted] = {}
    for each in whole:
        kinds.setdefault((re.sub(r"\d+|above|below", "", each[0]), each[2] == NONE), []).append(each)
    rng = random.Random(seed)
    return [rng.choice(alike) for alike in kinds.values()]


def plant(base: Path, change: Change, folder: Path) -> Path:
    """The folder with a copy of a checkpoint, changed."""
    shutil.copytree(base, folder)
    if callable(change):
        network: Any = transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.float32, local_files_only=True
        )
        change(network)
        network.save_pretrained(folder)
        change = {"rope_theta": 10_000.0}
    content = {**json.loads((folder / "config.json").read_text()), **change}
    (folder / "config.json").write_text(json.dumps({key: each for key, each in content.items() if each is not None}))
    return folder


def in_hub(folder: Path, home: Path) -> Path:
    """A hub's cache with the folder as a model: `transformers serve` lists those of its cache."""
    cached = home / "hub" / f"models--{HUB_NAME.replace('/', '--')}"
    shutil.copytree(folder, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0" * 40)
    return home


def in_gguf(folder: Path, file: Path) -> Path:
    """The folder as a GGUF file, with its scaling and window as llama.cpp's converter writes them."""
    import gguf

    from tests.parts.gguf.test_gguf import write_lexlet

    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or {"rope_type": "default"}
    kind, factor = rope["rope_type"], rope.get("factor", 1.0)

    def more(writer: Any) -> None:
        writer.add_add_bos_token(True)
        if kind == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(factor)
        if kind == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(factor)
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            if "attention_factor" in rope:  # llama.cpp multiplies its own by this one
                writer.add_rope_scaling_attn_factors(rope["attention_factor"] / (1 + 0.1 * math.log(factor)))
        if kind == "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, config["head_dim"]))
        if size := config.get("sliding_window"):
            writer.add_sliding_window(size)
            writer.add_sliding_window_pattern([True] * config["num_hidden_layers"])
            writer.add_logit_scale(1.0)
            for layer in range(config["num_hidden_layers"]):
                sinks = np.full(config["num_attention_heads"], -1e9, np.float32)
                writer.add_tensor(f"blk.{layer}.attn_sinks.weight", sinks)

    # Its Llama has no window; its Granite with windows is a Llama where all scales are 1 and no weight is on sinks.
    return write_lexlet(file, more, folder, "granite_swa" if config.get("sliding_window") else "llama")


def llama3_divisors(rope: Mapping[str, Any], dims: int) -> NDArray[np.float32]:
    """[pairs] by which llama3's scaling divides the frequencies."""
    turns = rope["original_max_position_embeddings"] / (
        2 * math.pi * rope["rope_theta"] ** (np.arange(0, dims, 2) / dims)
    )
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    found: NDArray[np.float32] = (1 / ((1 - kept) / rope["factor"] + kept)).astype(np.float32)
    return found


@contextmanager
def served(engine: str, folder: Path, scratch: Path) -> Iterator[EngineServer]:
    """The engine with a folder."""
    log = scratch / "log"
    if engine == "transformers":
        words = ["-m", "transformers.cli.transformers", "serve", HUB_NAME, "--device", "cpu"]
        server = EngineServer(words, log, {"HF_HOME": str(in_hub(folder, scratch / "home"))})
    elif engine == "vllm":
        stated = {"max_model_len": MAX_MODEL_LEN, "hf_overrides": {"max_position_embeddings": MAX_MODEL_LEN}}
        server = VllmServer(folder, "lexlet", stated, log)
    else:
        file = in_gguf(folder, scratch / "lexlet.gguf")
        words = ["-m", "llama_cpp.server", "--model", str(file), "--n_ctx", str(MAX_MODEL_LEN), "--logits_all", "true"]
        words += ["--n_threads", "1", "--n_threads_batch", "1"]
        server = EngineServer(words, log, {}, "/v1/models")
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.kill()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("transformers", "vllm", "llama.cpp"))
    parser.add_argument("pack", type=Path)
    parser.add_argument("--chat", help="chat template: ask in messages")
    parser.add_argument("--only", default="", help="setups with this in their name")
    asked, routes = parser.parse_args(), set[str]()
    reference = pack.read_pack(asked.pack)
    print("| engine | planted | identify says | | seconds | of CPU |\n| --- | --- | --- | --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        shutil.copytree(LEXLET, base)
        if asked.chat:
            settings = json.loads((base / "tokenizer_config.json").read_text())
            (base / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": asked.chat}))
        words = ["identify", str(asked.pack), "--json", "model=lexlet", f"model.path={base}", "backend=openai"]
        words += [f"backend.chat={'true' if asked.chat else 'false'}"]
        for place, (done, change, label) in enumerate(one_of_each_kind(reference.length // 4)):
            if asked.only not in done:
                continue
            scratch = Path(name) / f"{place}"
            scratch.mkdir()
            folder = plant(base, change, scratch / "planted")
            with served(asked.engine, folder, scratch) as server:
                at, before = time.monotonic(), server.cpu_seconds() + time.process_time()
                _, said = serving.quietly([*words, f"backend.url={server.url}"])
                spent = time.monotonic() - at, server.cpu_seconds() + time.process_time() - before
            if not said.startswith("{"):
                print(
                    f"| {asked.engine} | {done} | {said.strip()} | none | {spent[0]:.0f} | {spent[1]:.0f} |", flush=True
                )
                continue
            found = identify.Identification(**json.loads(said))
            routes.add(found.route)
            also = "".join(f" or {each}" for each in found.alike) + "".join(f"; but {each}" for each in found.odd)
            mark = right(reference, found, label)
            print(
                f"| {asked.engine} | {done} | {found.verdict}{also} | {mark} | {spent[0]:.0f} | {spent[1]:.0f} |",
                flush=True,
            )
        print(f"\ntold by {'; '.join(sorted(routes))}")


if __name__ == "__main__":
    main()
