"""Names say of what they are: each class name once, constants of several words, no function a lone participle."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED_CLASSES = {"Clex", "Hope", "PRope", "Rerope"}
"""Each a method and an encoding, which have the name of their file and of the registry."""
ONE_WORD_CONSTANTS = {
    *("COMMAND", "METRIC", "PART"),  # looked up by this name
    "F64",
    *("BABILONG", "GRAPHWALKS", "HELMET", "INFINITEBENCH", "LVEVAL", "MRCR", "NOLIMA", "RULER"),
    *("BLOOM", "DEEPSEEK3", "GPT4O", "LLAMA3", "QWEN2", "QWEN35", "TEKKEN"),
}
IRREGULAR_PARTICIPLES = {
    *("begun", "built", "chosen", "done", "drawn", "dealt", "fallen", "fed", "felt", "found", "given", "gone", "grown"),
    *(
        "held",
        "hidden",
        "kept",
        "known",
        "left",
        "led",
        "lost",
        "made",
        "meant",
        "met",
        "said",
        "seen",
        "sent",
        "shown",
    ),
    *("spelt", "spent", "spoken", "sworn", "taken", "told", "understood", "worn", "written"),
}
NO_PARTICIPLES = {"embed", "feed", "need", "seed", "speed", "embedding", "encoding", "heading", "padding", "string"}
OLD_NAMES = {
    ("lexbench/methods/resonance.py", "over"),
    *(("lexbench/core/attention.py", "allowed"), ("lexbench/backends/hf/exact/layers.py", "allowed")),
    *(
        (f"lexbench/parts/lab/encodings/{file}.py", "scaling")
        for file in ("base", "cosine", "deberta", "key_norm", "qk_norm", "t5", "tupe")
    ),
}
"""Hooks that users' methods and encodings define, which keep their names."""


def is_participle(name: str) -> bool:
    """Whether a name is one participle alone, with or without a leading underscore."""
    word = name.strip("_")
    alone = re.fullmatch(r"[a-z]+(ed|ing)", word) or word in IRREGULAR_PARTICIPLES
    return bool(alone) and word not in NO_PARTICIPLES


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Functions and methods that no other function holds, without properties: those are nouns or states."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_of(node)
        elif isinstance(node, ast.FunctionDef) and not any("property" in ast.unparse(d) for d in node.decorator_list):
            yield node


@dataclass(frozen=True)
class Names:
    """Names that a file defines."""

    classes: list[str]
    constants: list[str]
    """Of a module, in capitals."""
    functions: set[str]


def names_of(tree: ast.Module) -> Names:
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [each for node in assigned for each in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    constants = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return Names(
        [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)],
        [name for name in constants if name.isupper()],
        {each.name for each in functions_of(tree)},
    )


@pytest.fixture(scope="module")
def names() -> dict[str, Names]:
    """By the path of each file."""
    files = [*ROOT.glob("lexbench/**/*.py"), *ROOT.glob("tasks/*.py")]
    return {file.relative_to(ROOT).as_posix(): names_of(ast.parse(file.read_text())) for file in files}


def test_a_class_name_stands_once_in_the_tree(names: dict[str, Names]) -> None:
    found = defaultdict(list)
    for file, defined in names.items():
        for name in defined.classes:
            found[name].append(file)
    assert {name: files for name, files in found.items() if len(files) > 1 and name not in SHARED_CLASSES} == {}


def test_a_constant_says_of_what_it_is(names: dict[str, Names]) -> None:
    words = [(file, name) for file, defined in names.items() for name in defined.constants]
    assert [
        each for each in words if re.fullmatch(r"[A-Z][A-Z0-9]+", each[1]) and each[1] not in ONE_WORD_CONSTANTS
    ] == []


def test_no_function_is_a_lone_participle(names: dict[str, Names]) -> None:
    found = [
        (file, name) for file, defined in names.items() for name in sorted(defined.functions) if is_participle(name)
    ]
    assert [each for each in found if each not in OLD_NAMES] == []


def test_participles_are_told_from_verbs_and_nouns() -> None:
    assert all(map(is_participle, ("settled", "_asked", "said", "drawn", "scaling", "_held")))
    assert not any(map(is_participle, ("read", "settle", "prompt_of", "embed", "seed", "is_settled", "kept_keys")))
