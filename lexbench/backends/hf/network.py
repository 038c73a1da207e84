"""Networks of transformers: loaded as their files say, whole, and where they are to run."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

from lexbench.backends.hf.memory import is_out_of_memory
from lexbench.core.checkpoint import check_architecture

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def device_of(name: str) -> torch.device:
    """ValueError for one that is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"backend.device {name} is not here ({reason}): take auto or cpu") from None
    return device


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The network; ValueError for an unknown architecture, and for weights that would be filled with random numbers."""
    check_architecture(folder)
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        network, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # whatever transformers raises for a file that is not what it should be
        if isinstance(error, ValueError | OSError | MemoryError) or is_out_of_memory(error):
            raise
        said = " ".join(str(error).split())[:200]
        raise ValueError(
            f"checkpoint {folder} cannot be loaded ({type(error).__name__}: {said}): get it again"
        ) from error
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"checkpoint {folder} lacks {len(missing)} weights ({missing[0]}, ...): download it again")
    return network.eval()


def check_weights(network: Any) -> None:
    """ValueError for a weight that is no number."""
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"weight {name} must be finite, it has NaN or inf: get another copy or dtype")


def positions_end(base: nn.Module) -> int | None:
    """Rows of the table of learned or tabulated positions, past which nothing is defined; None: there is no table."""
    for name, module in base.named_modules():
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and (leaf == "wpe" or "position" in leaf):
            return module.num_embeddings - int(getattr(module, "offset", 0))
    for name, buffer in base.named_buffers():
        if name.endswith("embed_positions"):
            return len(buffer)
    return None
