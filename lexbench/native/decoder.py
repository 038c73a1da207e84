"""A small decoder in the shape of Llama: RMSNorm, SwiGLU, grouped-query attention, tied embeddings.

Positions enter only through an `Encoding`'s hooks; how scores become outputs is a function that a caller may replace.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn
from torch.nn import functional as F

from lexbench.encodings import Encoding
from lexbench.encodings.rope import Rope
from lexbench.files import write_bytes, write_text

Attend = Callable[[int, Encoding, Tensor, Tensor, Tensor], Tensor]
"""(layer, encoding, q [B, H, T, D], k [B, KV, T, D], v) -> [B, H, T, D]; q and k come before any rotation."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder."""

    vocabulary: int
    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 640
    """Width of the SwiGLU layer."""
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"shape: heads must divide width and kv_heads heads, got {self.width}, {self.heads}, {self.kv_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.width // self.heads


def flash(layer: int, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by PyTorch's fused kernel, over consecutive positions from 0."""
    positions = torch.arange(q.shape[2], device=q.device)
    q, k = encoding.meet(q, k, positions)
    bias = encoding.bias(positions, positions)
    if bias is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    unseen = torch.ones_like(bias, dtype=torch.bool).triu(1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.to(q.dtype).masked_fill(unseen, -torch.inf)[None], enable_gqa=True
    )


class Layer(nn.Module):
    """One block: attention, then SwiGLU, each behind an RMSNorm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kv_width = shape.kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(shape.width, shape.width, bias=False),
                "k_proj": nn.Linear(shape.width, kv_width, bias=False),
                "v_proj": nn.Linear(shape.width, kv_width, bias=False),
                "o_proj": nn.Linear(shape.width, shape.width, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(shape.width, shape.hidden, bias=False),
                "up_proj": nn.Linear(shape.width, shape.hidden, bias=False),
                "down_proj": nn.Linear(shape.hidden, shape.width, bias=False),
            }
        )

    def forward(self, stream: Tensor, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """[B, T, width]; `mix` is the attention of this layer, over q, k, v as [B, heads, T, D]."""
        normed = self.input_layernorm(stream)
        q, k, v = (
            self.self_attn[name](normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        stream = stream + self.self_attn["o_proj"](mix(q, k, v).transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(stream)
        gated = F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return stream + self.mlp["down_proj"](gated)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Token ids in, hidden states or logits out. Parameter names are those of Hugging Face's Llama."""

    def __init__(self, shape: Shape, encoding: Encoding) -> None:
        super().__init__()
        self.shape = shape
        self.encoding = encoding
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)

    def initialise(self, generator: torch.Generator) -> None:
        """Normal weights of deviation 0.02, smaller where a layer writes to the stream (GPT-2's rule)."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                deviation = 0.02 / (2 * self.shape.layers) ** 0.5 if writes else 0.02
                nn.init.normal_(weight, std=deviation, generator=generator)

    def hidden(self, tokens: Tensor, attend: Attend = flash) -> Tensor:
        """[B, T] token ids to [B, T, width] states behind the last norm."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.encoding.embed(self.embed_tokens(tokens), positions)
        for number, layer in enumerate(self.layers):
            stream = layer(stream, lambda q, k, v, number=number: attend(number, self.encoding, q, k, v))
        return self.norm(stream)  # type: ignore[no-any-return]

    def forward(self, tokens: Tensor, attend: Attend = flash) -> Tensor:
        """[B, T] token ids to [B, T, vocabulary] logits."""
        return F.linear(self.hidden(tokens, attend), self.embed_tokens.weight)


def save(decoder: Decoder, folder: Path, trained_length: int, bos: int, eos: int, dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors as an ordinary Llama; only for a RoPE decoder."""
    if not isinstance(decoder.encoding, Rope):
        raise ValueError(f"only rope saves as Llama, got {type(decoder.encoding).__name__}")
    shape = decoder.shape
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": trained_length,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": decoder.encoding.base,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    weights = {f"model.{name}": weight.detach().to(dtype).contiguous() for name, weight in decoder.named_parameters()}
    write_bytes(folder / "model.safetensors", serialize(weights, metadata={"format": "pt"}))
    write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    """A decoder from a Llama folder with tied embeddings and plain RoPE; ValueError for any other."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    plain = config.get("rope_scaling") is None and rope.get("rope_type", "default") == "default"
    if config.get("model_type") != "llama" or not config.get("tie_word_embeddings") or not plain:
        raise ValueError(
            f"native reads Llama folders with tied embeddings and plain RoPE, {folder} is another: use backend=hf"
        )
    shape = Shape(
        vocabulary=config["vocab_size"],
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        hidden=config["intermediate_size"],
        norm_epsilon=config["rms_norm_eps"],
    )
    base = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    decoder = Decoder(shape, Rope(shape.head_dim, base))
    files = sorted(folder.glob("*.safetensors"))
    weights = {name.removeprefix("model."): weight for file in files for name, weight in load_file(file).items()}
    weights.pop("lm_head.weight", None)
    decoder.load_state_dict(weights)
    for weight in decoder.parameters():  # not Module.to: frequencies stay in float64
        weight.data = weight.data.to(dtype)
    return decoder.eval()
