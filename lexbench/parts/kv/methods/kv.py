"""The methods `kv`: keys and values in few bits, or of fewer tokens."""

from dataclasses import dataclass
from typing import ClassVar

from lexbench.core.attention import Attention
from lexbench.core.errors import ConfigError
from lexbench.core.layer_types import has_attention
from lexbench.core.model import Model
from lexbench.core.plug_in import user_code_hash
from lexbench.core.record import Refused
from lexbench.core.values import is_whole
from lexbench.parts.kv.compression import Compression
from lexbench.parts.kv.compressor import USUAL_COMPRESSOR, compressor_named, compressor_names
from lexbench.parts.kv.forms import BITS_OF_FORMAT, LLAMA_CPP_BLOCK_NUMBERS, is_power_of_two

ALLOWED_BITS = (2, 3, 4, 8)
"""Bits of uniform quantisation."""
CHOICE_VERSION = 2
"""Raised where `keep` chooses other tokens: it enters the identity of such cells, and of no others."""


@dataclass(frozen=True)
class Kv:
    """Compress the cache of keys and values; composes with methods of positions (`yarn+kv`).

    Keys are rounded as the cache holds them: after rotation; before it under methods that rotate keys at several
    positions (rerope, self_extend), whose cache holds them so. Groups of tokens count from the text's first token.

    In a text that is scored, the tokens before the first target are the prompt.

    All layers that keep keys are compressed, those with a window too; with `layers=global` those that see all keys.

    Args:
        bits: 8, 4, 3 or 2, of uniform quantisation in groups; None: 4, where there is neither `format` nor `keep`.
        keys: channel (groups of tokens, as KIVI has them) or token (groups of channels).
        values: the same for values.
        group: numbers of a group, with a lowest level and a step of 16 bits each.
        rotate: hadamard: mix the numbers of a head by a Hadamard matrix with random signs before they are rounded
            (QuaRot, arXiv 2404.00456); false: do not.
        residual: last tokens that a query sees exactly; with keys by channel up to a group more. None: 128, or 0 with
            a format.
        format: fp8 (e4m3 with scale 1, as vLLM's default), q8_0 or q4_0 (llama.cpp's), in place of `bits`.
        keep: share of the prompt's tokens that each key head holds behind the prompt, in a layer with a window of those
            in it; None: all.
        by: how they are chosen, a file of `compressors/`: norm (keys of least norm), snapkv (most attended by the
            prompt's last 64 queries), expected (Expected Attention: most attended, times the size of the value, by
            normal queries with the mean and the spread of the prompt's own, at the next 512 positions), or yours.
        prefill: exact: the prompt's own queries see exact keys, as in serving engines that compress what they store;
            compressed: they see rounded keys, as in llama.cpp. Tokens are dropped behind the prompt in both.
    """

    family: ClassVar[str] = "keys seen"
    bits: int | None = None
    keys: str = "channel"
    values: str = "token"
    group: int = 64
    rotate: bool | str = False
    residual: int | None = None
    format: str | None = None
    keep: float | None = None
    by: str = USUAL_COMPRESSOR
    prefill: str = "exact"

    def __post_init__(self) -> None:
        choices = {
            "bits": (self.bits, (None, *ALLOWED_BITS)),
            "keys": (self.keys, ("channel", "token")),
            "values": (self.values, ("channel", "token")),
            "rotate": (self.rotate, (False, "hadamard")),
            "format": (self.format, (None, *BITS_OF_FORMAT)),
            "by": (self.by, compressor_names()),
            "prefill": (self.prefill, ("exact", "compressed")),
        }
        for name, (value, allowed) in choices.items():
            if value not in allowed or (isinstance(value, bool) and value):
                said = " or ".join(str(each).lower() for each in allowed if each is not None)
                raise ConfigError(f"method.{name} of kv must be {said}, got {value}")
        for name, number, least in (("group", self.group, 2), ("residual", self.residual or 0, 0)):
            if not is_whole(number, least):
                raise ConfigError(f"method.{name} of kv must be a whole number of at least {least}, got {number}")
        if self.bits is not None and self.format is not None:
            raise ConfigError(f"kv takes bits or a format, got bits {self.bits} and format {self.format}: give one")
        if self.keep is not None and not 0 < self.keep < 1:
            raise ConfigError(f"method.keep of kv must be above 0 and below 1, got {self.keep}: e.g. keep=0.5")
        if self.keep is None and self.by != USUAL_COMPRESSOR:
            raise ConfigError(f"method.by of kv chooses tokens to keep, got {self.by} without keep: e.g. keep=0.5")

    def compression(self) -> Compression:
        """The cache as data."""
        alone = self.bits is None and self.format is None and self.keep is None
        return Compression(
            bits=4 if alone else self.bits,
            format=self.format,
            keys=self.keys,
            values=self.values,
            group=self.group,
            hadamard=self.rotate == "hadamard",
            residual=(0 if self.format else 128) if self.residual is None else self.residual,
            keep=self.keep or 1.0,
            by=self.by,
            in_prompt=self.prefill == "compressed",
            version=1 if self.keep is None else CHOICE_VERSION,
            file=None if self.keep is None else user_code_hash(type(compressor_named(self.by))),
        )

    def attention(self, model: Model, length: int) -> Attention:
        """The slot `cache`; Refused where the layers of the model do not keep what this compresses."""
        made = self.compression()
        layers = model.kept_by_layer()
        if model.decoupled or any(each and each.latent for each in layers or ()):
            raise Refused(
                f"kv compresses keys and values of heads, {model.name} keeps one latent for all heads (multi-head "
                "latent attention): take another model"
            )
        if made.drops_tokens and made.choosing_queries != 0 and _shares_keys(model):
            raise Refused(
                f"kv by {made.by} chooses tokens by each layer's queries, and layers of {model.name} share keys: use "
                "by=norm"
            )
        usual = model.global_head_dim or model.head_dim
        sizes = {(each.key_dim, each.value_dim) for each in layers or () if each} or {
            (model.head_dim,) * 2,
            (usual,) * 2,
        }
        for key_dim, value_dim in sorted(sizes):
            _check_head(model.name, made, self.keys, key_dim)
            _check_head(model.name, made, self.values, value_dim)
        return Attention(cache=made)


def _check_head(name: str, made: Compression, way: str, width: int) -> None:
    """Refused where groups or the Hadamard matrix do not fit heads of so many numbers."""
    blocks = made.format in ("q8_0", "q4_0")
    size = LLAMA_CPP_BLOCK_NUMBERS if blocks else min(made.group, width)
    if (blocks or (made.bits is not None and way == "token")) and width % size:
        raise Refused(f"kv's groups of {size} do not divide a head of {width} on {name}: give another group")
    if made.hadamard and not is_power_of_two(width):
        raise Refused(f"kv's Hadamard matrix needs heads of a power of two, {name} has {width}: leave rotate out")


def _shares_keys(model: Model) -> bool:
    """Whether layers with attention use the keys of earlier ones."""
    kinds = model.layer_types or ()
    return any(
        each is None and has_attention(kind) for each, kind in zip(model.layer_caches or (), kinds, strict=False)
    )
