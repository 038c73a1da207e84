"""What llama.cpp makes of exports, and what `identify` and the gate say of it.

    python -m tools.llama_cpp [--pack PACK]

The engine is llama-cpp-python in this process, on one thread: an export's flags are its parameters. Of each method,
texts are scored by `hf` and by llama.cpp with the export of this method, token by token: with all weights in float32
(the GGUF file dequantized, keys and values in float32), and as the file is served (Q4_1: activations in 8 bits, keys
and values in float16). Then `lexbench identify` and the gate ask it behind a server, as `tools.serving`
does: SmolLM2 with its pack (lexbench fingerprint model=smollm2 corpus=stdlib length=512 n=16 --out PACK), and lexlet
with another release's mistakes. Last, what its own server reports of a prompt is compared with what the engine
computes.
"""

import argparse
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lexbench.checkpoints.checkpoint import read_model
from lexbench.core import registry
from lexbench.core.attention import Attention
from lexbench.core.model import Model
from lexbench.parts.gguf.folder import PACKAGE_PATH_PREFIX, _package_files
from lexbench.parts.serving.identify import pack
from tests.parts.gguf.test_gguf import write_lexlet
from tools import serving
from tools.engines import LABELS, LENGTH, METHODS, Nats, Read, compared, exported, gated, named

SCALINGS = {"linear": 1, "yarn": 2}
"""llama_rope_scaling_type."""
Ids = Sequence[int] | NDArray[np.int64]


def parameters(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of llama-cpp-python that llama.cpp's flags set."""
    ways: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "--ctx-size": ("n_ctx", int),
        "--rope-scaling": ("rope_scaling_type", SCALINGS.__getitem__),
        "--rope-scale": ("rope_freq_scale", lambda factor: 1 / factor),
        "--rope-freq-base": ("rope_freq_base", float),
        "--yarn-orig-ctx": ("yarn_orig_ctx", int),
    }
    found = {}
    for flag, value in flags.items():
        name, read = ways.get(flag, (flag.strip("-").replace("-", "_"), float))
        found[name] = read(value)
    return found


def engine(file: Path, flags: Mapping[str, Any], **more: Any) -> Any:
    """llama.cpp with a file and an export; float32 keys and values with type_k=0, type_v=0."""
    import llama_cpp

    given = {**parameters(flags), **more}
    return llama_cpp.Llama(str(file), logits_all=True, verbose=False, n_threads=1, n_threads_batch=1, **given)


def logits(llama: Any, tokens: Ids) -> NDArray[np.float32]:
    """[T, V] of the next token behind each one."""
    llama.reset()
    llama.eval(list(map(int, tokens)))
    found: NDArray[np.float32] = llama.scores[: len(tokens)].copy()
    return found


def losses(llama: Any, tokens: Ids) -> Nats:
    """[T - 1] nats of all tokens but the first."""
    found = torch.from_numpy(logits(llama, tokens)[:-1])
    targets = torch.as_tensor(np.asarray(tokens[1:]))
    return torch.nn.functional.cross_entropy(found, targets, reduction="none").double().numpy()


def in_float32(source: Path, target: Path) -> Path:
    """The same GGUF file with all weights dequantized."""
    import gguf

    held = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, held.fields["general.architecture"].contents())
    for name, field in held.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for each in held.tensors:
        weight = gguf.dequantize(each.data, each.tensor_type).astype(np.float32)
        writer.add_tensor(each.name, weight.reshape(each.shape[::-1]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def scores(file: Path, **more: Any) -> Read:
    """Nats of texts by llama.cpp with an export."""

    def read(attention: Attention, flags: Mapping[str, Any], texts: NDArray[np.int64]) -> Nats:
        llama = engine(file, flags, **more)
        found = np.stack([losses(llama, text) for text in texts])
        llama.close()
        return found

    return read


class Engine(serving.Engine):
    """llama.cpp behind the server of `tools.serving`."""

    def __init__(self, llama: Any) -> None:
        self.llama, self.lock = llama, threading.Lock()

    def scored(self, tokens: serving.Tokens) -> list[Any]:
        """As vLLM answers."""
        nats = losses(self.llama, tokens)
        return [
            None,
            *({str(token): {"logprob": -nll, "rank": 1}} for token, nll in zip(tokens[1:], nats.tolist(), strict=True)),
        ]

    def written(self, tokens: serving.Tokens, room: int, ends: Sequence[int]) -> serving.Tokens:
        """Greedy, with llama.cpp's cache."""
        new = [int(logits(self.llama, tokens)[-1].argmax())]
        while len(new) < room and new[-1] not in ends:
            self.llama.eval(new[-1:])
            new.append(int(self.llama.scores[self.llama.n_tokens - 1].argmax()))
        return new


@contextmanager
def served(file: Path, flags: Mapping[str, Any]) -> Iterator[str]:
    """The URL of llama.cpp behind the server of `tools.serving`."""
    llama = engine(file, flags)
    with serving.served(Engine(llama)) as server:
        yield server.url
    llama.close()


@contextmanager
def own_server(file: Path, flags: Mapping[str, Any]) -> Iterator[str]:
    """The URL of llama-cpp-python's own server."""
    import uvicorn
    from llama_cpp.server.app import create_app
    from llama_cpp.server.settings import ModelSettings, ServerSettings

    given = {"n_threads": 1, "n_threads_batch": 1, "verbose": False, "logits_all": True, **parameters(flags)}
    app = create_app(server_settings=ServerSettings(), model_settings=[ModelSettings(model=str(file), **given)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.1)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


def reported(url: str, llama: Any, text: str) -> Iterator[str]:
    """What its own server reports of a prompt, beside what the engine computes."""
    import urllib.request

    body = {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)["choices"][0]["logprobs"]
    tokens = llama.tokenize(text.encode(), add_bos=False)
    chances = torch.from_numpy(logits(llama, tokens)).log_softmax(-1).numpy()
    yield "| token | its server says | log-probability of the token | of the same token once more behind it |"
    yield "| --- | ---: | ---: | ---: |"
    for place in range(1, len(tokens)):
        shown = [said["token_logprobs"][place], chances[place - 1, tokens[place]], chances[place, tokens[place]]]
        yield f"| {said['tokens'][place]!r} | {' | '.join(f'{each:.2f}' for each in shown)} |"


def said_of(model: Model, file: Path, reference: Path) -> Iterator[str]:
    """Rows of the table: what identify says of SmolLM2 behind a server."""
    length = pack.read_pack(reference).longest
    for given, label in zip(METHODS, LABELS, strict=True):
        method, _, flags = exported(model, given, length, "llama.cpp")
        with served(file, flags) as url:
            code, said = named(url, "smollm2", reference, "--expect", label)
        yield f"| {method} | {code} | {said} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, help="a pack of SmolLM2, to name its setups by")
    parser.add_argument("--only", choices=("exports", "identify", "gate", "server"), help="one table")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    stated = registry.read_named_config("model", "smollm2")
    model, [file] = (
        read_model({**stated, "name": "SmolLM2"}),
        _package_files(stated["path"].removeprefix(PACKAGE_PATH_PREFIX)),
    )
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if asked.only in (None, "exports"):
            whole = in_float32(file, scratch / "whole.gguf")
            ways = {"float32": scores(whole, type_k=0, type_v=0), "Q4_1": scores(file)}
            for row in compared(model, "llama.cpp", ways):
                print(row, flush=True)
        if asked.only in (None, "identify") and asked.pack is not None:
            print("\n| SmolLM2, Q4_1, served with | exit code | identify says |\n| --- | ---: | --- |")
            for row in said_of(model, file, asked.pack):
                print(row, flush=True)
        if asked.only in (None, "gate"):
            print()
            lexlet = in_float32(write_lexlet(scratch / "half.gguf"), scratch / "lexlet.gguf")
            size = {"--ctx-size": max(*serving.LENGTHS, 256)}
            mistakes: dict[str, Mapping[str, Any]] = {
                "NTK 2, as exported": {**size, "--rope-freq-base": serving.BASE},
                "no flag": size,
                "linear 2 in its place": {**size, "--rope-scaling": "linear", "--rope-scale": 2.0},
            }
            for row in gated(scratch, lambda flags: served(lexlet, flags), mistakes):
                print(row, flush=True)
        if asked.only in (None, "server"):
            print()
            with own_server(file, {"--ctx-size": LENGTH}) as url:
                llama = engine(file, {"--ctx-size": LENGTH})
                for row in reported(url, llama, "The grass is green and the sky is blue."):
                    print(row)
                llama.close()
                if asked.pack is not None:
                    words = ["identify", str(asked.pack), "model=smollm2", "backend=openai", f"backend.url={url}"]
                    code, said = serving.quietly([*words, "backend.retries=0", "backend.concurrency=1"])
                    print(f"\nAsked by identify: exit code {code}. {said.splitlines()[-1 if code == 2 else 0]}")


if __name__ == "__main__":
    main()
