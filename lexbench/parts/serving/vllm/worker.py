"""Code that runs inside vLLM's workers: reads and overwrites their tables of cos and sin.

vLLM mixes the class into its worker by name (`worker_extension_cls`), so nothing is pickled.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from lexbench.backends.rope_tables import cos_sin_cache


class Turning:
    """Methods added to a worker, called by `LLM.collective_rpc`; arguments and results are plain numbers and lists."""

    model_runner: Any

    def lexbench_tables(self, places: list[int]) -> list[dict[str, Any]]:
        """Each rotary module of the model: class, rows, layout, whether it is writable, cos and sin at `places`.

        `cos` and `sin` are [places, rotated / 2]; places past the table's end are left out.
        """
        found = []
        for module in self._lexbench_modules():
            table = cos_sin_cache(module)
            rows = None if table is None else len(table)
            within = [place for place in places if rows is None or place < rows]
            cos, sin = _cos_sin(module, within) if table is None else table[within].double().cpu().chunk(2, dim=-1)
            found.append(
                {
                    "kind": type(module).__name__,
                    "rows": rows,
                    "halves": bool(getattr(module, "is_neox_style", True)),
                    "writable": table is not None,
                    "cos": cos.tolist(),
                    "sin": sin.tolist(),
                }
            )
        return found

    @torch.inference_mode()
    def lexbench_turn(self, inv_freq: list[float], scale: float, first: int, own: list[float]) -> None:
        """Overwrite every table: cos and sin of position * inv_freq, times scale; `first` rows from `own`, unscaled."""
        for module in self._lexbench_modules():
            table = cos_sin_cache(module)
            assert table is not None, f"{type(module).__name__} has no table to write"
            # In float64, rounded once to the dtype of the table.
            places = torch.arange(len(table), dtype=torch.float64)[:, None]
            angles = places * torch.tensor(inv_freq, dtype=torch.float64)
            values = scale * torch.cat([angles.cos(), angles.sin()], dim=-1)
            plain = places[:first] * torch.tensor(own, dtype=torch.float64)
            values[:first] = torch.cat([plain.cos(), plain.sin()], dim=-1)
            table.copy_(values)  # in place: CUDA graphs hold the address of the table
            # Some platforms read a second table, in bfloat16.
            if (twin := getattr(module, "cos_sin_cache_bf16", None)) is not None:
                twin.copy_(values)

    def _lexbench_modules(self) -> Iterator[nn.Module]:
        """Each rotary module once, though layers may share it: vLLM's own, or transformers' inside vLLM."""
        seen = set()
        for module in self.model_runner.get_model().modules():
            if cos_sin_cache(module) is not None or hasattr(module, "inv_freq"):
                key = id(module)
                if key not in seen:
                    seen.add(key)
                    yield module


@torch.inference_mode()
def _cos_sin(module: nn.Module, places: list[int]) -> list[Tensor]:
    """Cos and sin of a rotary module of transformers, which repeats all pairs: the first half is enough."""
    device = cast(Tensor, module.inv_freq).device
    made = module(torch.zeros(1, device=device), torch.tensor([places], device=device))
    return [values[0, :, : values.shape[-1] // 2].double().cpu() for values in made]
