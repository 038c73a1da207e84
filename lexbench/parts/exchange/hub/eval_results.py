"""Writes results as `.eval_results/*.yaml`, which the hub shows on a model's page and on its data set's leaderboard.

Format: https://huggingface.co/docs/hub/eval-results, by the classes of huggingface_hub. The `eval.yaml` by which a data
set becomes a benchmark has no class there, and the hub admits benchmarks by request: it is left to its owner.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResultEntry
from huggingface_hub import eval_result_entries_to_yaml as entries_as_data

from lexbench.core.errors import ConfigError
from lexbench.core.text import join_first_few
from lexbench.parts.exchange.hub.card_yaml import dump_yaml
from lexbench.parts.exchange.hub.dataset_files import configuration_names

EVAL_RESULTS_FILE = ".eval_results/lexbench.yaml"
"""Beside the model's card."""


def eval_results(models: Sequence[Mapping[str, Any]], dataset: str) -> str:
    """The values of a model card's `model-index` as YAML, one entry each.

    ConfigError unless the data set is ORG/NAME, and for several models, whose pages are others.

    Args:
        models: entries of a `model-index`, as `model_card.model_index` makes them.
        dataset: id on the hub of the data set that holds the samples.
    """
    if dataset.count("/") != 1 or not all(dataset.split("/")):
        raise ConfigError(f"--dataset must be the id of the samples on the hub, got {dataset!r}: e.g. me/lexbench")
    if len(models) > 1:
        names = join_first_few([str(each["name"]) for each in models])
        raise ConfigError(f"--dataset is for the page of one model, the runs are of {names}: share each model's runs")
    results = [result for each in models for result in each["results"]]
    folders = configuration_names(result["dataset"]["args"]["task"] for result in results)
    return dump_yaml(entries_as_data([entry for result in results for entry in _entries(result, folders, dataset)]))


def _entries(result: Mapping[str, Any], folders: Mapping[str, str], dataset: str) -> list[EvalResultEntry]:
    """An entry for each length of a curve."""
    about = result["dataset"]
    return [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=f"{folders[about['args']['task']]}-{metric['args']['length']}",
            value=metric["value"],
            source_url=result["source"]["url"],
            source_name=result["source"]["name"],
            notes=f"{metric['name']}, {about['name']}, n={metric['args']['n']}",
        )
        for metric in result["metrics"]
    ]
