"""Fast tokenizers of Hugging Face folders, without transformers."""

import copy
import datetime
import functools
import hashlib
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from lexbench.core.errors import ConfigError
from lexbench.core.extras import import_optional
from lexbench.core.files import read_object, read_utf8
from lexbench.core.task import Encoded, Frame, Tokenizer, Tokens

SENTENCEPIECE_BLANK = "\u2581"
"""SentencePiece's character for a blank."""
OPENED_THOUGHT_PATTERN = re.compile(
    r"[<\[\u25c1](?!\|?(/|end))[^<>\[\]/]*(think|thought|reason)[^<>\[\]/]*[>\]\u25b7]\s*$"
    r"|<\|channel\|?>(analysis|thought)\s*(<\|message\|>)?[^<>]{0,60}$"
    r"|[<\[\u25c1](\|?(begin|start)_of_|\w+:)?(think|thinking|thought|reasoning)\|?[>\]\u25b7][^<>\[\]\u25c1\u25b7]{0,60}$",
    re.IGNORECASE,
)
"""End of a prompt with an opening tag of a thought, such as <think>, or with a channel's beginning; a few words of
the thought may stand behind."""
_reading = threading.Lock()
"""Held while a tokenizer encodes: whether it reads names of special tokens as these is a state of the tokenizer."""


class FastTokenizer:
    """A `tokenizers.Tokenizer` with a BOS policy (see `lexbench.core.task.Tokenizer`).

    Args:
        tokenizer: of the checkpoint.
        bos: the BOS id, if there is one.
        begins_with_bos: whether BOS begins every context.
        template: from the roles of messages to the texts before, between and behind them; special tokens in these
            become tokens. It is called on first use of a chat, so a broken template fails chats only. None, or
            returning None: no chat template.
        prefix: ids that begin every context, where these are others than BOS; None: by `begins_with_bos`.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        bos: int | None,
        begins_with_bos: bool,
        template: Callable[..., Sequence[str] | None] | None = None,
        prefix: tuple[int, ...] | None = None,
    ) -> None:
        if begins_with_bos and bos is None:
            raise ConfigError("model.bos is true, but the tokenizer has no BOS token: set model.bos=false")
        self.bos = bos
        own = (bos,) if begins_with_bos and bos is not None else ()
        self.prefix: tuple[int, ...] = own if prefix is None else prefix
        # A file may have been saved with truncation, with padding, or with "<s>" in a text read as the token.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._template = template
        self._prepends = tokenizer.encode("\n", add_special_tokens=False).tokens[:1] == [SENTENCEPIECE_BLANK]

    thought: int = 0
    """Tokens of each question that are kept for thinking."""
    form: str = ""
    """Words for protocols and identities: the form of requests to a chat server; empty: token ids."""
    system: str | None = None
    """Message in front of the user's, in frames of a chat server."""
    thinking: bool = False
    """Whether the chat template lets the model think."""
    begins_chats: bool = False
    """Whether its prefix begins chats whose template lacks it, too: only where the user says that BOS begins all."""
    disagreement: str | None = None
    """Line for a log where two files of the folder begin texts differently: both, and the file that is followed."""

    def as_chat(self, form: str, system: str | None, thinking: bool, thought: int) -> "FastTokenizer":
        """Copy of the tokenizer for a server that takes messages: every frame is the chat template's.

        Args:
            form: one line, for protocols and identities.
            system: message in front of the user's; None: none, and what the template adds by itself stays.
            thinking: whether the template lets the model think.
            thought: tokens of each question that are kept for it.
        """
        other = copy.copy(self)
        other.__dict__.pop("_chat", None)
        other.form, other.system, other.thinking, other.thought = form, system, thinking, thought
        if self._template is not None:
            other._template = functools.partial(self._template, thinking=thinking)
        return other

    @property
    def vocabulary(self) -> int:
        """Number of token ids, with added tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of its rules and tokens."""
        return hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()[:16]

    def encode(self, text: str) -> Encoded:
        """Tokens of a text, without special tokens; a special token's name in the text stays text.

        Some tokenizers prepend a blank to every text (e.g. Llama 2's). A text that begins with white space continues
        another text: it gets no such blank, and has the tokens that it would have there.
        """
        given = self._prepends and len(text) > 1 and text.startswith(" ")  # the tokenizer prepends the text's own blank
        try:
            with _reading:
                encoding = self._tokenizer.encode(text[given:], add_special_tokens=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of tokenizers' own library; it is no Exception
                raise
            said = " ".join(str(error).split())[:100]
            raise ConfigError(f"tokenizer cannot read a text ({said}): download tokenizer.json again") from None
        ids = np.asarray(encoding.ids, dtype=np.int64)
        offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2) + given
        if self._prepends and not given and text[:1].isspace() and encoding.tokens[0] == SENTENCEPIECE_BLANK:
            ids, offsets = ids[1:], offsets[1:]
        starts, ends = offsets[:, 0], offsets[:, 1]
        starts[:1] = 0
        # Several pieces of one character, or a normalizer's output, all report its offset: the first piece gets it.
        starts[1:] = np.maximum(starts[1:], np.maximum.accumulate(ends)[:-1])
        return Encoded(ids=ids, starts=starts, text=text)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """Text of tokens, without special tokens."""
        return str(self._tokenizer.decode(np.asarray(ids, dtype=np.int64).tolist(), skip_special_tokens=True))

    def frame(self, chat: bool) -> Frame:
        """Only the prefix; or with `chat` the chat template around one user message.

        A chat begins as its template does, as in transformers and in most servers.

        Raises ConfigError if `chat` is set and the template is missing or cannot be rendered.
        """
        return (
            self._chat if chat or self.form else Frame(np.asarray(self.prefix, dtype=np.int64), np.empty(0, np.int64))
        )

    def talk(self, messages: Sequence[tuple[str, str]]) -> list[Tokens]:
        """Tokens of a conversation in the chat template, up to where the model's answer begins, in pieces.

        Every second piece is a message, the others are the template's; special tokens in messages stay text. BOS stands
        in front where the template writes it, and where `begins_chats`.

        Raises ConfigError if the template is missing, cannot be rendered with these roles, or opens a thought although
        the model shall not think.

        Args:
            messages: role (system, user, assistant) and content of each.
        """
        texts = self._template_texts(messages)
        if not self.thinking and opens_thought(texts[-1]):
            raise ConfigError(
                "the model's chat template opens a thought, told not to or not, in place of the answer: set "
                "backend.chat=true backend.thinking=free backend.thought=2048"
            )
        pieces = [self.template_tokens(text) for text in texts]
        if self.begins_chats and tuple(pieces[0][: len(self.prefix)]) != self.prefix:
            pieces[0] = np.concatenate([np.asarray(self.prefix, np.int64), pieces[0]])
        for place, (_, content) in enumerate(messages):
            pieces.insert(2 * place + 1, self.encode(content).ids)
        return pieces

    def rendered_tokens(self, messages: Sequence[tuple[str, str]]) -> Tokens:
        """Tokens of a conversation as a server reads it that encodes the whole rendered text; otherwise as `talk`."""
        first, *others = self._template_texts(messages)
        contents = (content for _, content in messages)
        return self.template_tokens(first + "".join(map("".join, zip(contents, others, strict=True))))

    def _template_texts(self, messages: Sequence[tuple[str, str]]) -> Sequence[str]:
        """The template's texts around messages; ConfigError where there is none."""
        texts = self._template([role for role, _ in messages]) if self._template else None
        if texts is None:
            where = "backend" if self.form else "task"
            raise ConfigError(
                f"chat=true needs a model with a chat template, this one has none: set {where}.chat=false"
            )
        return texts

    def opens_thought_by_default(self) -> bool:
        """Whether the chat template opens a thought where it is told nothing of thinking."""
        texts = self._template(["user"], thinking=None) if self._template else None
        return texts is not None and opens_thought(texts[-1])

    def template_tokens(self, text: str) -> Tokens:
        """Tokens of a text in which names of special tokens become these, as in a chat template."""
        with _reading:
            self._tokenizer.encode_special_tokens = False
            try:
                ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            finally:
                self._tokenizer.encode_special_tokens = True
        return np.asarray(ids, np.int64)

    @functools.cached_property
    def _chat(self) -> Frame:
        system = [("system", self.system)] if self.system is not None else []
        *before, _, after = self.talk([*system, ("user", "")])
        return Frame(np.concatenate(before), after)


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends in an opened thought, perhaps with first words: <think>, [THINK], <think>Okay."""
    return OPENED_THOUGHT_PATTERN.search(prompt) is not None


def load_tokenizer(folder: Path, bos: bool | None = None) -> FastTokenizer:
    """Load the tokenizer of a checkpoint's folder.

    Args:
        folder: of the checkpoint, with tokenizer.json.
        bos: whether BOS begins every context, chats too; None: as in the tokenizer's own configuration, which may put
            other tokens there (`[gMASK]<sop>` of GLM-4): `add_bos_token` of tokenizer_config.json where it is stated,
            else what tokenizer.json puts there. Where the two disagree, a line says so, once in a process.
    """
    file = folder / "tokenizer.json"
    tokenizer = read_tokenizer(file) if file.exists() else _convert(folder)
    settings = _json(folder / "tokenizer_config.json")
    bos_id = _token_id(tokenizer, settings.get("bos_token"), _json(folder / "config.json").get("bos_token_id"))
    stated = settings.get("add_bos_token") if bos is None else bos
    front = leading_special_tokens(tokenizer)
    begins = bool(stated) and (bos_id is not None or bos is not None)
    template = functools.partial(_template, folder, settings)
    found = FastTokenizer(tokenizer, bos_id, begins, template, front if stated is None else None)
    found.begins_chats = bool(bos)
    if bos is None and found.prefix != front:
        ours, theirs = (" ".join(str(tokenizer.id_to_token(token)) for token in ids) for ids in (found.prefix, front))
        found.disagreement = (
            f"texts begin with {ours or 'no token'}, by add_bos_token={json.dumps(stated)} of "
            f"tokenizer_config.json, and with {theirs or 'no token'} by {file.name} beside it: "
            "the first is followed, model.bos=true or model.bos=false overrules both"
        )
        _say_once(f"in {folder} {found.disagreement}")
    return found


@functools.cache
def _say_once(line: str) -> None:
    """Print a line on standard error, the first time in this process only."""
    print(f"lexbench: {line}", file=sys.stderr)


def leading_special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Ids of the special tokens that a tokenizer puts in front of every text by itself."""
    tokenizer.no_padding()  # padding on the left is marked, too
    read = tokenizer.encode("a")
    marked = zip(read.ids, read.special_tokens_mask, strict=True)
    return tuple(token for token, _ in itertools.takewhile(lambda each: each[1], marked))


def prepend_special_tokens(tokenizer: tokenizers.Tokenizer, ids: Sequence[int]) -> None:
    """Let a tokenizer put these tokens in front of every text, and no others around it."""
    named = [(tokenizer.id_to_token(token), token) for token in ids]
    single = [*(f"{name}:0" for name, _ in named), "$A:0"]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=single, pair=[*single, "$B:1"], special_tokens=named
    )


def wrap_loaded_tokenizer(given: Any) -> Tokenizer:
    """The tokenizer of an object that is loaded already; ConfigError where it does not tell which text a token spells.

    Args:
        given: a `Tokenizer` of lexbench, a `tokenizers.Tokenizer` (without BOS), or a fast tokenizer of transformers.
    """
    if all(hasattr(given, name) for name in ("encode", "decode", "frame", "prefix", "vocabulary")):
        own: Tokenizer = given
        return own
    backend = given if isinstance(given, tokenizers.Tokenizer) else getattr(given, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ConfigError(
            f"tokenizer must be a fast tokenizer of transformers, a tokenizers.Tokenizer or a folder with "
            f"tokenizer.json, got {type(given).__name__}: lengths are counted in its tokens"
        )
    # A copy: ours turns truncation and padding off.
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    if backend is given:
        return FastTokenizer(copy, None, False)
    settings = {"chat_template": given.chat_template, **given.special_tokens_map}
    bos = given.bos_token_id
    return FastTokenizer(copy, bos, False, functools.partial(_template, None, settings), leading_special_tokens(copy))


MESSAGE_PLACEHOLDER_PATTERN = re.compile("\u2402\\d+\u2403")
"""Placeholder of a message when a template is rendered."""
TEMPLATE_DATE = datetime.date(2024, 7, 26)
"""The date in templates that write one, fixed so that a cell has the same prompts on every day."""
DATE_FORMAT_FILTERS = "".join(
    f" | replace('%{part}', '{TEMPLATE_DATE.strftime('%' + part)}')" for part in "aAbBdjmyYHMS"
)
SAME_DAY = "{% macro strftime_now(form) %}{{ form" + DATE_FORMAT_FILTERS + " }}{% endmacro %}\n"
"""Prepended to a template, replaces transformers' date function, which cannot be set otherwise."""


def _template(
    folder: Path | None, settings: Mapping[str, Any], roles: Sequence[str], thinking: bool | None = False
) -> list[str] | None:
    """The chat template's texts before, between and behind messages of these roles, with the generation prompt.

    Rendered as in transformers, with two differences: the date is fixed, and thinking is off by default, because the
    tokens to write are for the answer. With `thinking` None the template decides.
    """
    file = folder / "chat_template.jinja" if folder else None
    remedy = "download the tokenizer again"
    source = read_utf8(file, remedy) if file and file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several templates by name
        named = [each for each in source if isinstance(each, Mapping)]
        source = next((each.get("template") for each in named if each.get("name") == "default"), None)
    if source is None:
        return None
    from jinja2 import TemplateError

    fill = import_optional("transformers.utils.chat_template_utils", "hf", "a chat template").render_jinja_template
    # Templates name special tokens: bos_token, eos_token, ...
    tokens = {key: _content(value) for key, value in settings.items() if key.endswith("_token") and value}
    values: dict[str, Any] = {key: token for key, token in tokens.items() if isinstance(token, str)}
    values |= {} if thinking is None else {"enable_thinking": thinking}
    talk = [[{"role": role, "content": f"\u2402{place}\u2403"} for place, role in enumerate(roles)]]
    try:
        rendered, _ = fill(conversations=talk, chat_template=SAME_DAY + source, add_generation_prompt=True, **values)
    except (TemplateError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"chat template of {folder or 'the tokenizer'} cannot be rendered ({reason}): set task.chat=false"
        ) from None
    texts = MESSAGE_PLACEHOLDER_PATTERN.split(str(rendered[0]))
    if MESSAGE_PLACEHOLDER_PATTERN.findall(str(rendered[0])) != [message["content"] for message in talk[0]]:
        what = "the user message" if list(roles) == ["user"] else f"each of the messages {', '.join(roles)} once"
        raise ConfigError(f"chat template of {folder or 'the tokenizer'} does not contain {what}: set task.chat=false")
    return texts


def _content(token: str | dict[str, Any] | None) -> str | None:
    spelled = token.get("content") if isinstance(token, dict) else token
    return None if spelled is None else str(spelled)


def _convert(folder: Path) -> tokenizers.Tokenizer:
    """Convert a slow tokenizer with transformers."""
    slow = import_optional("transformers", "hf", f"a tokenizer without tokenizer.json ({folder})").AutoTokenizer
    try:
        converted: tokenizers.Tokenizer = slow.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"tokenizer of {folder} cannot be read ({reason}): give a folder with tokenizer.json"
        ) from None
    return converted


def read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json; ConfigError if it cannot be read."""
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"tokenizer {file} cannot be read ({str(error)[:200]}): download it again") from None


def _json(file: Path) -> dict[str, Any]:
    return read_object(file, "download it again") if file.exists() else {}


def _token_id(tokenizer: tokenizers.Tokenizer, name: str | dict[str, Any] | None, fallback: int | None) -> int | None:
    spelled = _content(name)
    try:
        found = fallback if spelled is None else tokenizer.token_to_id(spelled)
    except UnicodeEncodeError:
        raise ConfigError(f"token {spelled!r} must be whole characters: download tokenizer_config.json again") from None
    if found is not None and not (isinstance(found, int) and 0 <= found < tokenizer.get_vocab_size()):
        raise ConfigError(
            f"bos_token_id must be the id of a token, got {str(found)[:60]!r}: download config.json again"
        )
    return found
