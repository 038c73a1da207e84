"""The floor: uniform likelihoods and random tokens."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from lexbench import Attention, Generate, Loglikelihood, Model, ProbeAttention, Refused
from lexbench.backends.chance import Chance
from lexbench.core.attention import Slopes


@pytest.fixture(scope="module")
def chance(tmp_path_factory: pytest.TempPathFactory) -> Chance:
    folder = tmp_path_factory.mktemp("chance")
    words = {f"w{number}": number for number in range(40)}
    spoken = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    spoken.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    spoken.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 50}))
    return Chance(Model(name="none", trained_length=8, head_dim=4, vocabulary=50, path=str(folder)))


def asked(index: int, prompt: list[int], room: int = 200) -> Generate:
    return Generate(index=index, cluster="", prompt=np.array(prompt), max_new_tokens=room)


def test_every_target_costs_the_logarithm_of_the_vocabulary(chance: Chance) -> None:
    question = Loglikelihood(index=0, cluster="", tokens=np.arange(12), first_target=5, bytes=7, words=7)
    np.testing.assert_array_equal(chance.score(question).nll, np.full(7, np.float32(math.log(50))))


def test_what_is_written_fills_the_room_with_known_tokens_uniformly(chance: Chance) -> None:
    chance.attend(Attention(bias=Slopes((1.0,))))
    answer = chance.write(asked(0, [1, 2], room=40_000))
    assert len(answer.tokens) == 40_000
    assert answer.hit_room
    counts = np.bincount(answer.tokens, minlength=40)
    assert len(counts) == 40  # ids 40..49 have no text
    assert abs(counts - 1000).max() < 6 * math.sqrt(1000)
    assert answer.text.split()[:3] == [f"w{token}" for token in answer.tokens[:3]]


def test_what_is_written_follows_from_index_and_prompt_alone(chance: Chance) -> None:
    first = chance.write(asked(0, [1, 2])).tokens
    others = [chance.write(asked(1, [1, 2])).tokens, chance.write(asked(0, [2, 1])).tokens]
    np.testing.assert_array_equal(first, chance.write(asked(0, [1, 2])).tokens)
    np.testing.assert_array_equal(first[:5], chance.write(asked(0, [1, 2], room=5)).tokens)
    for other in others:  # chance agrees at one place of 40
        assert (first == other).mean() < 0.15


def test_probes_are_refused(chance: Chance) -> None:
    with pytest.raises(Refused, match="no attention to probe"):
        chance.probe(ProbeAttention(index=0, cluster="", tokens=np.arange(4)))


def test_a_model_without_a_path_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"give model\.path"):
        Chance(Model(name="none", trained_length=8, head_dim=4))


def test_it_answers_without_torch(chance: Chance) -> None:
    code = (
        "import sys, numpy as np\n"
        "from lexbench import Generate, Model\n"
        "from lexbench.backends.chance import Chance\n"
        "chance = Chance(Model(name='none', trained_length=8, head_dim=4, path=sys.argv[1]))\n"
        "chance.write(Generate(index=0, cluster='', prompt=np.arange(2), max_new_tokens=3))\n"
        "print('torch' in sys.modules or 'transformers' in sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(chance.model.path)], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "False"
