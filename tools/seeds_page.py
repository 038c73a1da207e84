"""The page of the seeds' rows: `python -m tools.seeds_page` runs each command and writes results/seeds.md (minutes)."""

import contextlib
import io
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lexbench.commands import main

PAGE = Path(__file__).parents[1] / "results" / "seeds.md"
HEAD = """# What the seed documents name

Each system, task, metric and request of the four documents that lexbench began from: the survey of length extrapolation
(Zhao et al.), Su's articles (kexue.fm), the LEX Transformer (arXiv 2212.10554), and a note on encodings. A command that
`plans` ended well as it stands: leave out `--dry-run` to measure. Others need data from the hub or a copy, and were not
tried. What is not here has its reason, or was not built for want of time.

| # | row | command | state |
| --- | --- | --- | --- |
"""


def encoding(name: str, study: str = "encodings") -> str:
    """The command that trains and measures an entry of a study."""
    return f"lexbench study {study} 'encodings=[{name}]' 'seeds=[0]' --dry-run"


def method(name: str, *words: str) -> str:
    """The command that measures a method on the embedded model."""
    return " ".join(
        ["lexbench run model=lexlet", f"method={name}", *words, "task=last_segment 'lengths=[512]' --dry-run"]
    )


def task(name: str, *words: str) -> str:
    """The command that asks a task of the embedded model."""
    return " ".join(["lexbench run model=lexlet", f"task={name}", *words, "'lengths=[256,512]' n=2 --dry-run"])


@dataclass(frozen=True)
class Row:
    """A row of the seeds."""

    name: str
    command: str = ""
    """Empty: there is none."""
    state: str = ""
    """Why there is none, or what of the row is missing; with a command that is not run: what it needs."""
    runs: bool = True
    """Whether the page runs the command; False where it needs a copy of data."""


ROWS = {
    1: Row("sinusoidal positions", encoding("sinusoidal")),
    2: Row("SHAPE", encoding("shape")),
    3: Row("CAPE (Likhomanenko)", encoding("cape")),
    4: Row(
        "complex embeddings", encoding("complex"), "the embedding alone; its network of complex numbers is not built"
    ),
    5: Row("FLOATER", encoding("floater")),
    6: Row("relative vectors (Shaw)", encoding("shaw")),
    7: Row("T5's bias", encoding("t5")),
    8: Row("TISA", encoding("tisa")),
    9: Row("ALiBi", encoding("alibi")),
    10: Row("KERPLE, log and power", encoding("kerple,kerple_power")),
    11: Row("Sandwich", encoding("sandwich")),
    12: Row("FIRE", encoding("fire")),
    13: Row("DAPE (Zheng)", encoding("dape")),
    14: Row("BiPE", encoding("bipe")),
    15: Row("CoPE (Golovneva)", encoding("cope")),
    16: Row("RoPE", encoding("rope")),
    17: Row("xPos", encoding("xpos")),
    18: Row("xPos without rotation, or with one zeta", encoding("xpos_unrotated,xpos_scalar", "laboratory")),
    19: Row("no positions", encoding("nope")),
    20: Row("learned positions", encoding("learned")),
    21: Row("Transformer-XL, Huang, TUPE, DeBERTa", encoding("transformer_xl,huang,tupe,tupe_t5,deberta")),
    22: Row("position interpolation", method("pi")),
    23: Row("NTK-aware", method("ntk")),
    24: Row("a larger base by a factor", method("ntk_old")),
    25: Row("dynamic NTK", method("dynamic_ntk")),
    26: Row(
        "a scale for each position",
        method("dynamic_ntk", "method.policy=per_position", "backend=native"),
        "for NTK on native; not for YaRN",
    ),
    27: Row("a scale for prompt and answer", method("yarn")),
    28: Row("NTK by parts", method("ntk_by_parts")),
    29: Row("truncated basis", method("truncated_basis")),
    30: Row("YaRN, by its paper", method("yarn_paper")),
    31: Row("YaRN, by its code", method("yarn")),
    32: Row("adjusted base frequency", method("abf")),
    33: Row("scaling laws of RoPE", method("critical_base")),
    34: Row("CLEX", encoding("clex")),
    35: Row("entropy-aware ABF", method("entropy_abf")),
    36: Row("LongRoPE", method("longrope")),
    37: Row("resonance", method("yarn+resonance")),
    38: Row("power basis (Giraffe)", method("power_basis")),
    39: Row("randomized positions", encoding("randomized")),
    40: Row("PoSE", encoding("pose,rope"), "two parts; its rule for more could not be read"),
    41: Row("leaky ReRoPE", method("leaky_rerope")),
    42: Row("ReRoPE", method("rerope")),
    43: Row("Self-Extend", method("self_extend")),
    44: Row("clipped log n", method("rerope+log_n")),
    45: Row("sliding window", method("sliding_window")),
    46: Row("Lambda mask (LM-Infinite)", method("lambda_mask")),
    47: Row("StreamingLLM", method("streaming_llm")),
    48: Row("HWFA", encoding("hwfa")),
    49: Row("HWFA2", encoding("hwfa2")),
    50: Row("Zebra", encoding("zebra")),
    51: Row("key norm", encoding("key_norm")),
    52: Row("CoCA", encoding("coca,coca_strict")),
    53: Row("robust positions in training", encoding("shape,cape,randomized")),
    54: Row("inverse leaky ReRoPE", encoding("inverse_leaky_rerope")),
    55: Row("training with ReRoPE", encoding("rerope")),
    56: Row(
        "GAU, one head, norm behind",
        "lexbench train recipe=zoo encoding=rope recipe.shape.block=gau recipe.shape.heads=1 recipe.shape.kv_heads=1",
        "trains as it stands",
        runs=False,
    ),
    57: Row("Focused Transformer", state="needs a memory and its own training: [Memory methods](memory_methods.md)"),
    58: Row("attention buckets", method("attention_buckets")),
    59: Row("linear recurrence with decay", encoding("gla,gated_delta")),
    60: Row("critical dimension", method("critical_base")),
    61: Row("LEX: xPos and BCA", encoding("xpos")),
    62: Row("BCA on other encodings", method("bca")),
    63: Row("attention resolution", task("resolution")),
    64: Row("order variance, translation invariance", task("order_variance,offset")),
    65: Row("a quarter to eight times the length", "lexbench run model=lexlet task=lex n=2 --dry-run"),
    66: Row(
        "PG22, arXiv, NarrativeQA",
        "lexbench run model=lexlet corpus=proof_pile task=lex",
        "pg19 and proof_pile from the hub; no PG22, no NarrativeQA",
        runs=False,
    ),
    67: Row("QMSum", "lexbench run model=lexlet corpus=qmsum task=lex", "from your copy", runs=False),
    68: Row("speed of xPos and BCA", method("bca"), "costs stand in each table; no test is timed"),
    69: Row("the last segment", task("last_segment")),
    70: Row("perplexity at growing windows", task("sliding,non_overlapping,prefix")),
    71: Row(
        "WikiText-103, OpenWebText2, ArXiv",
        "lexbench run model=lexlet corpus=wikitext task=sliding",
        "from the hub; OpenWebText2 by corpus=hub",
        runs=False,
    ),
    72: Row("LongBench-E", "lexbench run model=lexlet task=longbench_e", "from your copy", runs=False),
    73: Row(
        "Llama 2, Vicuna, ChatGLM3",
        "lexbench run model=local model.path=FOLDER task=real",
        "a folder of weights; ChatGLM3 needs remote code, which never runs",
        runs=False,
    ),
    74: Row("arithmetic within ten", task("arithmetic,arithmetic_within_ten")),
    75: Row("needle, lost in the middle", task("needle")),
    76: Row("scratchpad, parity, distractors", task("parity,parity_shown,running_arithmetic,distractor_qa")),
    77: Row("length generalization", task("addition,reverse,sort,copy"), "no deduction"),
    78: Row("BLEU, ROUGE", task("planted_summary"), "ROUGE; no BLEU, as nothing is translated"),
    79: Row("machine translation", state="no system of the documents is measured by it, and no data came with them"),
    80: Row("L-Eval, ZeroSCROLLS", state="not built"),
    81: Row("InfiniteBench", "lexbench run model=lexlet task=infinitebench", "from your copy", runs=False),
    82: Row(
        "S4, RWKV, Mamba, Hyena",
        "lexbench run model=local model.path=FOLDER task=last_segment",
        "RWKV and Mamba as transformers has them; no S4, no Hyena",
        runs=False,
    ),
    83: Row("recurrent memory", state="states are handed from segment to segment: [Memory methods](memory_methods.md)"),
    84: Row(
        "MMLU, arena", "lexbench lm_eval --help", "by lm-evaluation-harness; no arena, which needs people", runs=False
    ),
    85: Row("the price of extrapolation", method("yarn")),
    86: Row("published tables", state="`results/published`, beside measured ones on pages of studies"),
}
"""By number."""


def state(row: Row) -> str:
    """State of a row; its command is run where it can be, in an empty folder."""
    if not row.command or not row.runs:
        return row.state
    words = shlex.split(row.command)[1:]
    with tempfile.TemporaryDirectory() as folder:
        said = io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main.main(words)
    if code or "refused" in said.getvalue():
        raise SystemExit(f"{row.command} ended with {code}: {said.getvalue()[-500:]}")
    return f"plans; {row.state}" if row.state else "plans"


def line(number: int) -> str:
    """The line of a row."""
    row = ROWS[number]
    return f"| {number} | {row.name} | {f'`{row.command}`' if row.command else ''} | {state(row)} |"


def rows() -> dict[int, str]:
    """The lines that the page holds, by number."""
    lines = [each for each in PAGE.read_text().splitlines() if each.startswith("| ")][2:]
    return {int(each.split("|")[1]): each for each in lines}


if __name__ == "__main__":
    PAGE.write_text(HEAD + "\n".join(map(line, ROWS)) + "\n")
