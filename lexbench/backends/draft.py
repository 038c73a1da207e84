"""An answer while it is written, token by token."""

from collections.abc import Collection, Sequence

import numpy as np

from lexbench.core.record import Refused
from lexbench.core.task import Generate, GenerateAnswer, Tokenizer


class Draft:
    """An answer that is being written."""

    def __init__(self, question: Generate, tokenizer: Tokenizer, ends: Collection[int], dtype: str) -> None:
        self._question, self._tokenizer, self._ends, self._dtype = question, tokenizer, ends, dtype
        self._new: list[int] = []
        self._stopped = False
        # tokens that hold a stop text and the token before it, which may lose its blank: bytes may be tokens
        self._tail = 8 + 4 * max((len(text.encode()) for text in question.until), default=0)

    @property
    def ended(self) -> bool:
        """Whether no further token counts."""
        return self._stopped or len(self._new) == self._question.max_new_tokens

    def add(self, tokens: Sequence[int], wrong: Sequence[bool]) -> None:
        """Append tokens up to the end of the answer; Refused where one of them came from logits that are NaN."""
        for token, bad in zip(tokens, wrong, strict=True):
            if self.ended:
                return
            if bad:
                raise Refused(f"logits are NaN in {self._dtype}: use another dtype")
            if token in self._ends:
                self._stopped = True
                return
            self._new.append(token)
            until = self._question.until
            self._stopped = bool(until) and self._question.contains_stop_text(
                self._tokenizer.decode(self._new[-self._tail :])
            )

    def as_answer(self) -> GenerateAnswer:
        """The answer."""
        text = self._tokenizer.decode(self._new)
        return GenerateAnswer(tokens=np.array(self._new, np.int64), text=text, hit_room=not self._stopped)
