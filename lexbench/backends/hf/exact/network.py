"""Load a network of transformers, complete and unchanged, onto a device."""

import copy
import importlib.util
import inspect
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.distributed import DistributedConfig

from lexbench.backends.hf.exact.layers import WINDOW_CONFIG_ENTRIES, stated_size
from lexbench.checkpoints.checkpoint import check_architecture, weight_bytes
from lexbench.core.errors import ConfigError
from lexbench.core.memory import is_out_of_memory

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")
}
MODEL_LOADERS = (
    (AutoModelForCausalLM, transformers.MODEL_FOR_CAUSAL_LM_MAPPING),
    (AutoModelForImageTextToText, transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING),
)
"""Loaders of a checkpoint, tried in this order: of the text tower alone, then of all towers."""
MAX_WEIGHT_MEMORY_SHARE = 0.8
"""Share of a GPU's free memory that weights may take; the rest is for activations."""


def must_shard(device: str, folder: Path, dtype: str) -> bool:
    """Whether layers are spread over several GPUs: with `all`, and with `auto` where one cannot hold the weights."""
    if device == "all":
        if not torch.cuda.is_available():
            raise ConfigError("backend.device all needs GPUs, this machine has none: use auto or cpu")
        return True
    if device != "auto" or torch.cuda.device_count() < 2:
        return False
    return weight_bytes(folder, dtype) > MAX_WEIGHT_MEMORY_SHARE * torch.cuda.mem_get_info(0)[0]


def load_network(folder: Path, dtype: torch.dtype, spread: bool = False, split: int = 1) -> Any:
    """Load the network; ConfigError for an unknown architecture, or if weights are missing (they would be random).

    Args:
        folder: of the checkpoint.
        dtype: of the weights.
        spread: put each layer on one of all GPUs, by accelerate's device map; else into the machine's memory.
        split: processes of torch.distributed, this one among them, that get a share of each layer.
    """
    check_architecture(folder)
    if spread and importlib.util.find_spec("accelerate") is None:
        raise ConfigError("weights on several GPUs need accelerate: pip install accelerate, or give backend.device=cpu")
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network, missing = None, []
        for auto, known in MODEL_LOADERS:
            # The next way only where the one before leaves weights missing.
            if type(config) in known and (network is None or missing):
                network, found = auto.from_pretrained(
                    folder,
                    dtype=dtype,
                    device_map="auto" if spread else None,
                    use_safetensors=True,
                    local_files_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    **({"distributed_config": DistributedConfig(tp_size=split)} if split > 1 else {}),
                )
                missing = sorted(found["missing_keys"])
    except ImportError as error:
        raise ConfigError(
            f"checkpoint {folder} needs a library that is not here ({_first_sentence(error)}): install it"
        ) from None
    except Exception as error:  # transformers raises many classes for broken files
        if isinstance(error, ConfigError | OSError) or is_out_of_memory(error):
            raise
        if isinstance(error, ValueError) and "\n" not in str(error):
            raise ConfigError(str(error)) from None
        said = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"checkpoint {folder} cannot be loaded ({type(error).__name__}: {said}): "
            "mend its config.json, or download it again"
        ) from error
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
    if network is None:
        raise ConfigError(
            f"model_type {config.model_type} of {folder} is no causal language model in transformers "
            f"{transformers.__version__}: use a checkpoint that AutoModelForCausalLM opens"
        )
    if missing:
        raise ConfigError(f"checkpoint {folder} lacks {len(missing)} weights ({missing[0]}, ...): download it again")
    known = network.state_dict().keys()
    # transformers only warns of such weights: the model would be shorter than the one that was trained.
    if extra := sorted(name for name in found["unexpected_keys"] if _of_a_layer(name, known)):
        raise ConfigError(
            f"checkpoint {folder} holds weights of more layers than config.json states ({extra[0]}, ...): "
            "download it again"
        )
    if split > 1:
        _join_vocabulary(network)
    return network.eval()


def _join_vocabulary(network: Any) -> None:
    """Put whole embeddings and a whole head in place of shares: a state, and its logits, are of one process."""
    embeddings, head = network.get_input_embeddings(), network.get_output_embeddings()
    tied = head.weight is embeddings.weight
    whole = _without_split(embeddings)
    whole.weight = nn.Parameter(_whole_weight(embeddings.weight), requires_grad=False)
    last = _without_split(head)
    last.weight = whole.weight if tied else nn.Parameter(_whole_weight(head.weight), requires_grad=False)
    last.bias = None if head.bias is None else nn.Parameter(_whole_weight(head.bias), requires_grad=False)
    network.set_input_embeddings(whole)
    network.set_output_embeddings(last)


def _without_split(module: nn.Module) -> Any:
    """A copy of a module, with what its class has (a scale of Gemma's embeddings), without its weights and hooks."""
    kept = copy.copy(module)
    fresh = nn.Module()
    for name, value in vars(fresh).items():
        if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            setattr(kept, name, value)
    kept._parameters, kept._buffers, kept._modules = {}, dict(module._buffers), dict(module._modules)
    vars(kept).pop("forward", None)
    return kept


def _whole_weight(weight: Tensor) -> Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight.detach()


def _first_sentence(error: Exception) -> str:
    """The first sentence of an error of several lines."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _of_a_layer(name: str, known: Collection[str]) -> bool:
    """Whether an unused weight is one of a further layer: the network has the same weight in its layer 0."""
    return any(f"{name[: at.start()]}.0.{name[at.end() :]}" in known for at in re.finditer(r"\.\d+\.", name))


def check_weights(network: Any) -> None:
    """ConfigError if a weight is NaN or inf."""
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise ConfigError(
                f"weight {name} must be finite, it has NaN or inf: download the checkpoint again, or use another dtype"
            )


def language_models(network: Any) -> list[Any]:
    """The network, then the language models inside it with a head of their own, as in Blip-2 or Kosmos-2.

    None inside an encoder with a decoder: that decoder reads the encoder's states.
    """
    if network.config.is_encoder_decoder:
        return [network]
    return [network, *(model for model in _inner_models(network) if model.get_output_embeddings() is not None)]


def _inner_models(network: Any) -> list[Any]:
    """The models that a network is made of, without itself."""
    return [module for module in network.modules() if isinstance(module, PreTrainedModel) and module is not network]


def explain_missing_inputs(network: Any, error: Exception) -> str:
    """Part of a message: why a network does not run on tokens alone, and the remedy."""
    if network.config.is_encoder_decoder:
        return (
            "is an encoder with a decoder, which reads another text or an image first: "
            "use a model that continues the text it reads"
        )
    if "pixel_values" in inspect.signature(network.forward).parameters:
        return "does not run without an image, a question here is text: use a model that reads text alone"
    said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return f"does not run on tokens alone, a question here has nothing else: use another model ({said})"


def windows_of(config: Any) -> list[int]:
    """Sizes of the sliding and chunked windows that a text config states."""
    found = [stated_size(config, name) for name in (*WINDOW_CONFIG_ENTRIES, "attention_window_size")]
    return [size for size in found if size is not None and size > 0]


def tower_candidates(network: Any) -> list[Any]:
    """The modules that could make last hidden states of tokens, the innermost first, so that no image tower is part.

    Those that read the network's own embeddings.
    """
    own = _embeddings(network)
    found = [module for module in _inner_models(network) if own is not None and _embeddings(module) is own]
    return found[::-1] or [network.base_model]


def _embeddings(module: Any) -> Any:
    try:
        return module.get_input_embeddings()
    except NotImplementedError:  # it reads no tokens
        return None


@torch.inference_mode()
def position_table_size(tower: Any, token: Tensor) -> int | None:
    """Number of positions in the model's table of learned or fixed embeddings; None if it has no table.

    Found by the names that transformers uses: `wpe` (GPT-2), `embed_positions` with an `offset` (OPT), and so on.
    Tables that reading text does not use, as those of an image tower, do not count.

    Args:
        tower: makes last hidden states of tokens.
        token: [1, 1] id to read.
    """
    tables = [
        module
        for name, module in tower.named_modules()
        if isinstance(module, nn.Embedding) and (name.endswith("wpe") or "position" in name.rpartition(".")[2])
    ]
    used: list[nn.Embedding] = []
    handles = [table.register_forward_hook(lambda module, given, made: used.append(module)) for table in tables]
    try:
        if tables:
            tower(input_ids=token, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for table in used:
        return table.num_embeddings - int(getattr(table, "offset", 0))
    for name, buffer in tower.named_buffers():
        if name.endswith("embed_positions"):
            return len(buffer)
    return None
