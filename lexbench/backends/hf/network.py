"""Load a network of transformers, complete and unchanged, onto a device."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

from lexbench.backends.hf.memory import is_out_of_memory
from lexbench.core.checkpoint import check_architecture, weight_bytes

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


FILLED = 0.8
"""Share of a GPU's free memory that weights may take; the rest is for activations."""


def spreads(device: str, folder: Path, dtype: str) -> bool:
    """Whether layers are spread over several GPUs: with `all`, and with `auto` where one cannot hold the weights."""
    if device == "all":
        if not torch.cuda.is_available():
            raise ValueError("backend.device all needs GPUs, this machine has none: use auto or cpu")
        return True
    if device != "auto" or torch.cuda.device_count() < 2:
        return False
    return weight_bytes(folder, dtype) > FILLED * torch.cuda.mem_get_info(0)[0]


def device_of(name: str) -> torch.device:
    """The device of a name (auto, all, cpu, cuda:1, ...); ValueError if this machine does not have it."""
    if name in ("auto", "all"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"backend.device {name} is not available ({reason}): use auto or cpu") from None
    return device


def load(folder: Path, dtype: torch.dtype, spread: bool = False) -> Any:
    """Load the network; ValueError for an unknown architecture, or if weights are missing (they would be random).

    Args:
        folder: of the checkpoint.
        dtype: of the weights.
        spread: put each layer on one of all GPUs, by accelerate's device map; else into the machine's memory.
    """
    check_architecture(folder)
    if spread and importlib.util.find_spec("accelerate") is None:
        raise ValueError("weights on several GPUs need accelerate: pip install accelerate, or give backend.device=cpu")
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        network, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map="auto" if spread else None,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises many classes for broken files
        if isinstance(error, ValueError | OSError | MemoryError) or is_out_of_memory(error):
            raise
        said = " ".join(str(error).split())[:200]
        raise ValueError(
            f"checkpoint {folder} cannot be loaded ({type(error).__name__}: {said}): download it again"
        ) from error
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"checkpoint {folder} lacks {len(missing)} weights ({missing[0]}, ...): download it again")
    return network.eval()


def check_weights(network: Any) -> None:
    """ValueError if a weight is NaN or inf."""
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(
                f"weight {name} must be finite, it has NaN or inf: download the checkpoint again, or use another dtype"
            )


def positions_end(base: nn.Module) -> int | None:
    """Number of positions in the model's table of learned or fixed embeddings; None if it has no table.

    Found by the names that transformers uses: `wpe` (GPT-2), `embed_positions` with an `offset` (OPT), and so on.
    """
    for name, module in base.named_modules():
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and (leaf == "wpe" or "position" in leaf):
            return module.num_embeddings - int(getattr(module, "offset", 0))
    for name, buffer in base.named_buffers():
        if name.endswith("embed_positions"):
            return len(buffer)
    return None
