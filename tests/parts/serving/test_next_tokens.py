"""The likeliest next tokens that servers tell: in each form, by ids or by texts, as many as each allows."""

from typing import Any

import numpy as np
import pytest

from lexbench.checkpoints.checkpoint import locate_checkpoint, read_model
from lexbench.checkpoints.tokenizer import load_tokenizer
from lexbench.core.record import Refused
from lexbench.core.task import Generate
from lexbench.parts.serving.openai.backend import OpenAI
from lexbench.parts.serving.openai.http import ServerClient
from lexbench.parts.serving.openai.replies import NoLikelihoods, Replies
from tests.backends import scripted

TOKENIZER = load_tokenizer(locate_checkpoint("lexbench:lexlet"))
REPLIES = Replies(ServerClient("http://127.0.0.1:9/v1", None, None, 1.0, 0, None), TOKENIZER, TOKENIZER.vocabulary)
THE, OF = (int(TOKENIZER.encode(f"x{word}").ids[-1]) for word in (" the", " of"))
"""Ids of two words behind another."""


def chat(*rows: dict[str, Any], written: float = -0.5) -> dict[str, Any]:
    return {"logprobs": {"content": [{"token": "x", "logprob": written, "top_logprobs": [*rows]}]}}


def completion(row: dict[str, Any], written: float | None = -0.5) -> dict[str, Any]:
    return {"logprobs": {"tokens": ["x"], "token_logprobs": [written], "top_logprobs": [row]}}


@pytest.mark.parametrize(
    "choice",
    [
        completion({" the": -0.5, " of": -2.0}),
        completion({f"token_id:{THE}": -0.5, f"token_id:{OF}": -2.0}),
        completion({"\u0120the": -0.5, "\u2581of": -2.0}),
        chat({"token": " the", "logprob": -0.5}, {"token": " of", "logprob": -2.0}),
        chat({"id": THE, "token": "?", "logprob": -0.5}, {"id": OF, "token": "?", "logprob": -2.0}),
        completion({" the": -0.5, " of": -2.0, "no token of this vocabulary": -3.0, "": -4.0, "token_id:99999": -1.0}),
        completion({" the": -0.5, " of": -2.0, " a": float("-inf"), " b": None, " c": -9999.0}),
    ],
)
def test_each_form_names_the_same_tokens(choice: dict[str, Any]) -> None:
    found = REPLIES.likeliest_next_tokens(choice)
    assert (dict(found.nats), found.written) == ({THE: 0.5, OF: 2.0}, 0.0)


def test_a_written_token_that_is_not_the_likeliest_is_told() -> None:
    assert (
        REPLIES.likeliest_next_tokens(
            chat({"token": " the", "logprob": -0.5}, {"id": OF, "logprob": -2.0}, written=-2.0)
        ).written
        == 1.5
    )
    assert REPLIES.likeliest_next_tokens(completion({" the": -0.5, " of": -2.0}, written=None)).written == 0.0


def test_what_is_no_distribution_is_refused() -> None:
    silent: list[dict[str, Any]] = [{"logprobs": None}, {"finish_reason": "length", "index": 0, "text": " of"}]
    for choice in silent:
        with pytest.raises(NoLikelihoods, match="gives no log-probabilities of the tokens that it writes"):
            REPLIES.likeliest_next_tokens(choice)
    for choice in (
        {"logprobs": {"top_logprobs": None}},
        completion({" the": 0.0}),
        completion({" the": 0.0, " of": -9999.0}),  # a server that keeps the greedy token alone
        chat({"token": " the", "logprob": 1.0}, {"token": " of", "logprob": -2.0}),
    ):
        with pytest.raises(Refused, match="malformed answer"):
            REPLIES.likeliest_next_tokens(choice)


def test_a_server_that_allows_five_is_asked_for_five() -> None:
    model = read_model({"name": "lexlet", "path": "lexbench:lexlet"})
    questions = [Generate(index=0, cluster="", prompt=np.arange(size), max_new_tokens=1) for size in (3, 4, 5)]
    with scripted.serving(scripted.next_tokens(5)) as server:
        backend = OpenAI(model, url=server.url, retries=0, concurrency=1)
        server.asked.clear()
        [first, second] = backend.likeliest_next_tokens([questions[:2], questions[2:]])
        backend.close()
    assert [(len(each["prompt"]), each["logprobs"]) for each in server.asked] == [(3, 20), (3, 5), (4, 5), (5, 5)]
    assert [len(first), len(second)] == [2, 1]
    assert dict(first[0].nats) == {each: 1.0 + each for each in range(5)}
