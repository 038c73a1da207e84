"""No code asks whether something is a certain metric, summary, backend or part: it asks what that can do, or is.

A comparison with such a name is an ability that stands outside the thing's own file, and a stranger's metric or backend
lacks it. `STILL_COMPARED` lists what is left, and only shrinks.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from lexbench.core import parts, registry
from lexbench.metrics import KEY_METRICS, SHARED_METRICS
from lexbench.report.leaderboard.summary_boards import SUMMARY_OF_NAME

ROOT = Path(__file__).parent.parent
METRICS = {each.name for each in (*SHARED_METRICS, *KEY_METRICS)}
SUMMARIES = set(SUMMARY_OF_NAME)
BACKENDS = {*registry.registered_names("backend"), "function"}
PARTS = {each.name for each in parts.all_parts()} | {name for part in parts.all_parts() for _, name in part.provides}
STILL_COMPARED: Mapping[str, set[str]] = {
    # Words of other programs, columns of files, fields of samples: not these things, though called the same.
    "lexbench/methods/export.py": {"vllm"},
    "lexbench/parts/exchange/files/sample_logs.py": {"nll"},
    "lexbench/parts/exchange/inspect/providers.py": {"hf"},
    "lexbench/parts/exchange/lm_eval/results/metrics.py": {"perplexity"},
    "lexbench/parts/exchange/lm_eval/results/setup.py": {"hf"},
    "lexbench/parts/serving/openai/backend.py": {"vllm"},
    "lexbench/report/plots/over_length.py": {"chance"},
    "lexbench/report/wording.py": {"chance"},
    "lexbench/stats/baseline.py": {"cluster"},
    "lexbench/stats/rescored.py": {"cluster", "chance"},
    "lexbench/stats/tables.py": {"samples"},
    "lexbench/store/checksum.py": {"nll"},
    "lexbench/store/format.py": {"nll"},
    "lexbench/taskkit/asked.py": {"cluster", "chance"},
    # Where the metric is made.
    "lexbench/stats/detection.py": {"balance"},
    # The subject of the page or the command.
    "lexbench/parts/kv/divergence.py": {"kld"},
    "lexbench/parts/lab/study/page/beside.py": {"perplexity", "resolution"},
    "lexbench/parts/lab/study/page/measured.py": {"nll", "resolution"},
    "lexbench/parts/lab/study/page/page.py": {"resolution"},
    "lexbench/parts/lab/study/page/plots.py": {"resolution"},
    "lexbench/parts/lab/study/page/tables.py": {"resolution"},
    "lexbench/parts/serving/commands/identify.py": {"openai"},
    "lexbench/parts/serving/identify/make.py": {"hf"},
    # To be asked of a summary, a backend or a metric.
    "lexbench/parts/benchmarks/official.py": {"infinitebench"},
    "lexbench/parts/exchange/files/every_eval_ever.py": {"chance", "openai"},
    "lexbench/parts/exchange/hub/model_card.py": {"chance"},
    "lexbench/parts/search/trace/trace.py": {"nll"},
    "lexbench/parts/web/page/headlines.py": {"price", "collapse"},
    "lexbench/report/versus.py": {"nll", "perplexity"},
}


def strings(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Texts that one side of a comparison is or lists, by a constant of its file too."""
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    for each in node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]:
        if isinstance(each, ast.Starred | ast.Name):
            continue
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def compared(tree: ast.Module) -> Iterator[str]:
    """Texts that code compares something with."""
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from strings(side, constants)
        elif isinstance(node, ast.MatchValue):
            yield from strings(node.value, constants)


def test_no_name_of_a_metric_a_summary_a_backend_or_a_part_is_compared() -> None:
    names = METRICS | SUMMARIES | BACKENDS | PARTS
    for file in sorted([*(ROOT / "lexbench").rglob("*.py"), *(ROOT / "tasks").glob("*.py")]):
        place = file.relative_to(ROOT).as_posix()
        found = names & set(compared(ast.parse(file.read_text(encoding="utf-8"))))
        assert found <= STILL_COMPARED.get(place, set()), f"{place} compares {found}: ask what it can do, or is"


def test_the_scan_sees_constants_and_lists() -> None:
    text = "FEW = ('hf', 'vllm')\na in FEW\nb == 'nll'\nmatch c:\n    case 'area': pass\nd in ['x', *FEW]"
    assert sorted(compared(ast.parse(text))) == ["area", "hf", "nll", "vllm", "x"]
