"""Graph walks: the nodes that lead to a node, or that are reached from it in a number of steps."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lexbench import ConfigError, Generate, GenerateAnswer, Sample
from lexbench.parts.benchmarks.spread import PLAIN_NOUNS, Puzzle, Spread, Words
from lexbench.taskkit import matching
from lexbench.taskkit.prompt import check_at_least
from lexbench.taskkit.scoring import score_written

PROMPT_HEADER = "Remember which word leads to which.\n"
LINE_TEMPLATE = " {tail} leads to {head}."
QUESTION_TEMPLATES = {
    "parents": "\nWhich words lead directly to {node}?",
    "bfs": "\nWhich words does one reach from {node} in exactly {steps}?",
}
ANSWER_BEGINNINGS = {
    "parents": " The words that lead directly to {node} are",
    "bfs": " The words that one reaches from {node} in exactly {steps} are",
}


@dataclass(frozen=True)
class GraphWalk(Spread):
    """Name a set of nodes of a directed graph whose edges are spread over a text (the idea of GraphWalks, OpenAI 2025).

        Remember which word leads to which.
        ... drum leads to lamp. ... ring leads to lamp. ... lamp leads to vase. ... back again.
        Which words lead directly to lamp? The words that lead directly to lamp are        <- " ring, drum"

    The graph is a wood: `trees` equal trees over different words, so that degree, number and size of sets tell nothing.
    `ask=parents`: a tree is a node with `width` parents. `ask=bfs`: a root, `width` children, and behind each a path,
    so that `width` nodes lie at the distance `steps`. Edges are in random order.

    Constant over lengths: everything but the filler. Difficulty: width, steps, trees. Every edge of the asked tree is
    needed: without one, the node behind it (or in front of it) might be any.

    Scores: `accuracy`: exactly the set, in any order. `f1`: of the written and the right set. Chance: a model that
    picks the right kind of nodes of some tree has 1 / trees; all of them together have an f1 of 2 / (1 + trees).
    With width=1 a choice is possible, among the right kind of nodes of all trees; in its control among words that the
    text does not hold, as the left out one would be the only such one. A written guess in the control is `width` of
    all such words. (Up to version 1, one step was "1 steps".)

    Args:
        ask: parents, or bfs.
        width: nodes to name.
        steps: of bfs.
        trees: alike, one is asked for.
    """

    versions: ClassVar[tuple[int, int]] = (2, 3)
    ask: str = "parents"
    width: int = 2
    steps: int = 2
    trees: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ask not in QUESTION_TEMPLATES:
            raise ConfigError(f"graph_walk's ask must be one of {', '.join(QUESTION_TEMPLATES)}, got {self.ask}")
        check_at_least("graph_walk", self, width=1, steps=1, trees=2)
        if self.trees * self._size > len(PLAIN_NOUNS):
            raise ConfigError(
                f"graph_walk has {len(PLAIN_NOUNS)} words, {self.trees} trees need {self.trees * self._size}: "
                "lower trees, width or steps"
            )
        if self.choose and self.width > 1:
            raise ConfigError(
                f"graph_walk names a set of {self.width}, no choice: set task.choose=false or task.width=1"
            )

    @property
    def _size(self) -> int:
        return 1 + self.width * (self.steps if self.ask == "bfs" else 1)

    @property
    def what(self) -> str:
        """Words for the protocol: size of the set of nodes asked for, and number of trees in the graph."""
        asked = f"{self.width} nodes in {self.steps} steps" if self.ask == "bfs" else f"{self.width} parents"
        return f"graph walk, {asked}, {self.trees} alike trees"

    def puzzle(self, rng: np.random.Generator, words: Words) -> Puzzle:
        """Equal trees, their edges in random order."""
        unused = 0 if self.needle else self.trees - 1
        nodes = words(PLAIN_NOUNS, self.trees * self._size + unused)
        trees = [nodes[start : start + self._size] for start in range(0, len(nodes) - unused, self._size)]
        others = [tree[-1] for tree in trees[1:]] if self.needle else nodes[len(nodes) - unused :]
        edges = [(number, edge) for number, tree in enumerate(trees) for edge in self._edges(tree)]
        order = [edges[each] for each in rng.permutation(len(edges))]
        asked = trees[0]
        # In the control the text has all nodes but those of the asked tree, of which the question names one.
        unseen = math.comb(len(PLAIN_NOUNS) - (self.trees - 1) * self._size - 1, self.width)
        filled = {"node": asked[0], "steps": f"{self.steps} step{'s' if self.steps > 1 else ''}"}
        return Puzzle(
            header=PROMPT_HEADER,
            lines=[LINE_TEMPLATE.format(tail=tail, head=head) for _, (tail, head) in order],
            needed=frozenset(place for place, (number, _) in enumerate(order) if number == 0),
            ask=QUESTION_TEMPLATES[self.ask].format(**filled),
            begin=ANSWER_BEGINNINGS[self.ask].format(**filled),
            # The last layer, in random order: the order of an answer says nothing of the paths.
            expected=words(asked[-self.width :], self.width),
            chance=1 / self.trees,
            options=sorted([asked[-1], *others]) if self.choose else (),
            blind=1 / (self.trees if self.choose else unseen),
        )

    def _edges(self, tree: list[str]) -> list[tuple[str, str]]:
        root, *others = tree
        if self.ask == "parents":
            return [(node, root) for node in others]
        layers = [others[start : start + self.width] for start in range(0, len(others), self.width)]
        # Node k of each layer is on path k: the paths share only the root.
        paths = zip(*layers, strict=True)
        return [edge for path in paths for edge in zip([root, *path[:-1]], path, strict=True)]

    def judge(self, question: Generate, answer: GenerateAnswer) -> Sample:
        """Exact set, and F1 of the sets."""
        right, written = (
            set(question.facts["expected"]),
            set(matching.leading_items(self.plain(answer.text), self.item)),
        )
        same = len(right & written)
        f1 = 2 * same / (len(right) + len(written))
        return score_written(question, answer, {"accuracy": float(right == written), "f1": f1})
