"""Checks of the GPU campaign (tools/gpu.py): methods, and paths that no CPU reaches, against exact numbers."""

import copy
import functools
import importlib.util
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexbench.core.attention import Attention
from tools.gpu_calls import Found, peak, said, scores, writes
from tools.gpu_sizes import FAMILIES, SMALL, Campaign, attention_of, backend, network_of, small

LOGITS = {"bfloat16": 6e-2, "float32": 1e-3}
"""Largest deviation of a method's logits from float64's, as a fraction of their spread."""
SPARE = 1 << 30
"""Bytes that remain where memory is to end."""
FUSED_FAMILIES = {**FAMILIES, "glm4": {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}}
"""GLM-4 rotates a part of each head, in pairs of neighbours."""
JOINED_METHODS = (
    *("none", "yarn", "log_n", "rerope", "leaky_rerope", "self_extend", "dca", "streaming_llm"),
    "lambda_mask",
)
"""One of each structure of attention."""
PAIRS_SHARE = 1 / 8
"""Largest peak of a long text's pass, as a share of the scores of all its pairs in one layer."""


def check_methods(campaign: Campaign, family: str, dtype: str, names: list[str]) -> Found:
    """Checks of each method on a small model of a family."""
    from lexbench.core.record import Refused
    from lexbench.runner.verify import failure_of_checks, verify_attention

    length = campaign.scale.verified
    here = small(family, campaign.device, getattr(torch, dtype))
    there = small(family, "cpu", torch.float64)
    there.reader.network.load_state_dict(
        {name: each.cpu().double() for name, each in here.reader.network.state_dict().items()}
    )
    tokens = np.random.default_rng(0).integers(0, 512, length)
    found: Found = {}
    for name in names:
        attention = attention_of(name, here.model, length)
        if attention is None:
            continue
        try:
            checks = verify_attention(here, attention, length)
            here.attend(attention)
            there.attend(attention)
            got, exact = (each.logits(tokens, [length], length).cpu().double() for each in (here, there))
        except Refused as refusal:
            found[name] = {"refused": refusal.reason}
            continue
        except Exception as error:  # a method that fails is one row of the record
            found[name] = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            continue
        apart = float((got - exact).std() / exact.std())
        found[name] = {"apart": apart}
        if why := failure_of_checks(checks):
            found[name]["failed"] = why
        elif not apart <= LOGITS[dtype]:
            found[name]["failed"] = f"logits deviate by {apart:.1e} from float64's, {LOGITS[dtype]:.0e} is allowed"
    wrong = [name for name, row in found.items() if "failed" in row]
    return {"passed": not wrong, "wrong": wrong, "methods": found}


def long_text(campaign: Campaign) -> Found:
    """gpt-oss, for which transformers keeps the scores of all pairs, is read without them, and equally."""
    sizes = campaign.scale.models.get("gpt_oss_20b")
    if sizes is None:
        model = small("gpt_oss", campaign.device, campaign.dtype)
    else:
        model = backend(sizes, campaign.device, campaign.dtype, "gpt_oss", num_hidden_layers=2)
    length, network = campaign.scale.pairs, model.reader.network
    short = np.random.default_rng(0).integers(3, 500, 60)
    model.attend(Attention())
    got = model.logits(short, [len(short)], len(short)).double()
    model.reader.installer.remove()
    with torch.inference_mode():
        ids = torch.from_numpy(short)[None].to(campaign.device)
        stock = network(input_ids=ids).logits[0, :, : got.shape[1]].double()
    model.attend(Attention())
    apart = float((got - stock).std() / stock.std())
    bytes_held = peak(lambda: model.score(scores(1, length, length - 16)[0]), campaign.device)
    limit = int(PAIRS_SHARE * network.config.num_attention_heads * length**2 * network.dtype.itemsize)
    wrong = [] if model.reader.installer.always else ["the model's own attention reads it"]
    if not apart <= LOGITS["bfloat16"]:
        wrong.append(f"logits deviate by {apart:.1e} from the model's own")
    if bytes_held is not None and bytes_held > limit:
        wrong.append(f"{bytes_held / 1e9:.1f} GB at the peak of {length} tokens, {limit / 1e9:.1f} are allowed")
    return {"passed": not wrong, "wrong": wrong, "apart": apart, "bytes": bytes_held, "length": length}


def fused_deviation(family: str, device: str) -> float:
    """Deviation of logits from float64's, over their spread, where norms and rotations are a Triton kernel each.

    AssertionError where one of them is not replaced, or is not as it was afterwards.
    """
    from lexbench.backends.hf.fast.fused import Fused
    from lexbench.kernels import triton_rotate

    sizes = {"model_type": family, **SMALL, **FUSED_FAMILIES[family]}
    ids = torch.arange(2, 14, device=device).view(2, 6)
    network = network_of(sizes, device, torch.bfloat16, max_position_embeddings=64, initializer_range=0.1)
    network.config._experts_implementation = "eager"  # the grouped product of experts has no float64
    norms = [each for each in network.modules() if type(each).__name__.endswith("RMSNorm")]
    for norm in norms:  # factors of new networks are 1 and hide themselves
        torch.nn.init.uniform_(norm.get_parameter("weight"), 0.5, 1.5)
    kernel, turned = triton_rotate.rotate_pairs, list[int]()

    def counting(vectors: Tensor, *given: Any, **named: Any) -> Tensor:
        turned.append(vectors.shape[1])
        return kernel(vectors, *given, **named)

    with torch.inference_mode():
        exact = copy.deepcopy(network).double()(ids).logits
        fused, before = Fused(network, 4e-2), network(ids).logits
        triton_rotate.rotate_pairs = counting
        try:
            with fused.put():
                network(ids)
                turned.clear()
                got = network(ids).logits
                replaced = [each for each in norms if "forward" in vars(each)]
        finally:
            triton_rotate.rotate_pairs = kernel
        assert len(replaced) == len(norms), f"{family}: {len(replaced)} of {len(norms)} norms are fused"
        assert len(turned) == 2 * len(network.model.layers), f"{family}: {len(turned)} rotations are fused"
        assert torch.equal(network(ids).logits, before), f"{family} is not as it was"
    return float((got - exact).std() / exact.std())


def repeated_steps(campaign: Campaign) -> Found:
    """Steps of writing are recorded and repeated, with norms and rotations in one kernel each, in bfloat16."""
    if campaign.device != "cuda" or importlib.util.find_spec("triton") is None:
        return {"left out": "it needs a GPU and the package triton"}
    rows = {family: said(functools.partial(fused_deviation, family, campaign.device)) for family in FUSED_FAMILIES}
    wrong = [f"{family}: {row}" for family, row in rows.items() if isinstance(row, str) or row > LOGITS["bfloat16"]]
    repeated = {}
    for family in FAMILIES:
        model = small(family, campaign.device, torch.bfloat16)
        model.attend(Attention())
        model.write(writes(1, 60, 24)[0])
        repeated[family] = model.reader.repeated
    # Families whose layers slide may keep what their cache drops.
    wrong += [f"{family}: steps are not recorded" for family in ("llama", "qwen3") if not repeated[family]]
    return {"passed": not wrong, "wrong": wrong, "deviations": rows, "repeated": repeated}


def together(campaign: Campaign) -> Found:
    """Writing and scoring in batches is writing and scoring one by one, in float32."""
    from lexbench.runner.answers import answer_questions

    wrong = []
    for family in ("gemma3_text",) if campaign.scale.toy else FAMILIES:
        model = small(family, campaign.device, torch.float32)
        for name in JOINED_METHODS:
            attention = attention_of(name, model.model, 128)
            if attention is None:
                continue
            try:
                model.attend(attention)
                asked = writes(5, 60, 9, uneven=True)
                alone = [model.write(each).tokens.tolist() for each in asked]
                many = [each.tokens.tolist() for each in answer_questions(model, asked)]  # type: ignore[union-attr]
                texts = scores(4, 50)
                one = np.stack([model.score(each).nll for each in texts])
                model._batch = 4
                both = np.stack([each.nll for each in answer_questions(model, texts)])  # type: ignore[union-attr]
                model._batch = None
            except Exception as error:
                wrong.append(f"{family}, {name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                continue
            if alone != many:
                wrong.append(f"{family}, {name}: other tokens")
            if not np.abs(one - both).max() <= 1e-3:
                wrong.append(f"{family}, {name}: likelihoods differ by {np.abs(one - both).max():.1e}")
    return {"passed": not wrong, "wrong": wrong}


def memory_ends(campaign: Campaign) -> Found:
    """Too many texts for the memory are halved, one text too long is deferred in one line, and the device goes on."""
    if campaign.device != "cuda":
        return {"left out": "the device is no GPU"}
    model = small("llama", campaign.device, torch.float32)
    model.reader.positions_end = None
    _, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + SPARE) / total)
    try:
        wrong = _memory_ends(model)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"passed": not wrong, "wrong": wrong}


def _memory_ends(model: Any) -> list[str]:
    from lexbench.core.record import Deferred

    length = 1024
    model._batch = int(SPARE / (length * 512 * 4))  # all of the memory for logits, and more for the states
    model._chunk = length * model._batch
    wrong = []
    try:
        found = list(model.answer_batch(scores(model._batch, length)))
        halved = len(found) == model._batch and model._limit < sys.maxsize
    except Deferred as refusal:
        halved = True
        if "out of memory" not in refusal.reason:
            wrong.append(refusal.reason)
    if not halved:
        wrong.append("a batch beyond the memory was not halved")
    model._chunk = 512
    try:
        model.score(scores(1, 1 << 22)[0])
        wrong.append("a text beyond the memory was answered")
    except Deferred as refusal:
        if "out of memory" not in refusal.reason or "\n" in refusal.reason:
            wrong.append(refusal.reason)
    torch.cuda.empty_cache()
    model.score(scores(1, 64)[0])
    return wrong


def low_head(campaign: Campaign) -> Found:
    """Likelihoods of a bfloat16 head against float64, over a large vocabulary."""
    from lexbench.kernels import likelihood

    vocabulary = 1000 if campaign.scale.toy else 150_000
    generator = torch.Generator(campaign.device).manual_seed(0)
    weight, states = (
        torch.randn(rows, 1024, generator=generator, device=campaign.device).to(torch.bfloat16)
        for rows in (vocabulary, 600)
    )
    weight *= 0.1
    targets = torch.arange(600, device=campaign.device) % vocabulary
    got = likelihood.token_nll(states[None], likelihood.linear_head(weight), targets)
    logits = states.double() @ weight.double().mT
    exact = logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]
    apart = float((got - exact).abs().max())
    return {"passed": apart <= 1e-3, "wrong": [] if apart <= 1e-3 else [f"apart by {apart:.1e} nats"], "nats": apart}
