"""Tokenizers: every byte and word belongs to one token, and BOS is where the model wants it."""

import datetime
import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, processors
from transformers import AutoTokenizer

from lexbench.checkpoints.checkpoint import locate_checkpoint
from lexbench.checkpoints.tokenizer import FastTokenizer, load_tokenizer, wrap_loaded_tokenizer
from lexbench.core.errors import ConfigError
from lexbench.taskkit.prompt import context_beginning, context_prefix

TEXTS = [
    "One day, she saw a big red ball.\n\n  It was  round.",
    " leading and trailing \n",
    "naïve façade – 日本語の文章 and 🙂🙂🏽 in one",
    "e\u0301 is two code points, é one; \u00a0 is no ASCII space",
    "12345 + 67 = 12412\tdef f(x):\n    return x",
    "a",
    " ",
]


@pytest.fixture(params=["ours", "stories260K"])
def each(request: pytest.FixtureRequest) -> FastTokenizer:
    """A byte-level tokenizer, and one with SentencePiece's blanks and byte fallback."""
    if request.param == "ours":
        found: FastTokenizer = request.getfixturevalue("tokenizer")
        return found
    return load_tokenizer(request.getfixturevalue("shared") / "stories260K-hf")


@pytest.mark.parametrize("text", TEXTS)
def test_units_of_any_division_add_up_to_the_text(each: FastTokenizer, text: str) -> None:
    encoded = each.encode(text)
    tokens = len(encoded.ids)
    rng = np.random.default_rng(0)
    assert encoded.units(0, tokens) == (len(text.encode()), len(text.split()))
    for parts in [
        range(tokens + 1),
        *(sorted({0, tokens, *rng.integers(0, tokens + 1, 4).tolist()}) for _ in range(9)),
    ]:
        units = [encoded.units(first, last) for first, last in zip(parts, list(parts)[1:], strict=False)]
        assert sum(count for count, _ in units) == len(text.encode())
        assert sum(words for _, words in units) == len(text.split())


def test_a_characters_bytes_belong_to_its_first_piece(each: FastTokenizer) -> None:
    """Unknown characters: each byte is a token."""
    encoded = each.encode("x語語")
    pieces = [encoded.units(place, place + 1)[0] for place in range(len(encoded.ids))]
    assert pieces[-6:] == [3, 0, 0, 3, 0, 0]


def test_places_never_go_back() -> None:
    """Pieces that share a character: `x` with the first byte of é, its second byte with `y`."""
    symbols = ["x", "y", "Ã", "©", "xÃ", "©y"]
    bpe = tokenizers.Tokenizer(
        models.BPE(vocab={symbol: place for place, symbol in enumerate(symbols)}, merges=[("x", "Ã"), ("©", "y")])
    )
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoded = FastTokenizer(bpe, bos=None, begins_with_bos=False).encode("xéy")
    assert encoded.ids.tolist() == [4, 5]
    assert [encoded.units(0, 1), encoded.units(1, 2)] == [(3, 1), (1, 0)]


def test_stories260k_gives_its_known_tokens(shared: Path) -> None:
    """llama2.c's tokenizer: BOS 1 begins, 512 ids; decoding gives the text back."""
    stories = load_tokenizer(shared / "stories260K-hf")
    assert (stories.bos, stories.prefix, stories.vocabulary) == (1, (1,), 512)
    text = "Once upon a time, there was a little girl named Lily."
    assert stories.decode([1, *stories.encode(text).ids]) == text
    assert stories.encode(text).ids[0] == 403


def test_a_special_token_that_a_text_spells_out_is_text(each: FastTokenizer) -> None:
    encoded = each.encode("before <s> after")
    assert each.bos not in encoded.ids
    assert each.decode(encoded.ids) == "before <s> after"


def test_nothing_is_cut_or_padded_by_habits_of_the_file(tokenizer: FastTokenizer) -> None:
    habits = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    habits.enable_truncation(4)
    habits.enable_padding(length=64)
    assert FastTokenizer(habits, 0, True).encode(TEXTS[0]).ids.tolist() == tokenizer.encode(TEXTS[0]).ids.tolist()


def folder(tmp_path: Path, tokenizer: FastTokenizer, adds_bos: bool, **settings: object) -> Path:
    saved = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    if adds_bos:
        saved.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    saved.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize(
    ("adds_bos", "settings", "asked", "prefix"),
    [
        (True, {"bos_token": "<s>"}, None, (0,)),
        (False, {"bos_token": "<s>"}, None, ()),
        (False, {"bos_token": {"content": "<s>"}, "add_bos_token": True}, None, (0,)),
        (True, {"bos_token": "<s>", "add_bos_token": False}, None, ()),
        (True, {"bos_token": "<s>", "add_bos_token": None}, None, (0,)),
        (False, {}, None, ()),
        (True, {"bos_token": "<s>"}, False, ()),
        (False, {"bos_token": "<s>"}, True, (0,)),
    ],
)
def test_bos_begins_contexts_as_stated_or_as_the_tokenizer_does(
    tmp_path: Path,
    tokenizer: FastTokenizer,
    adds_bos: bool,
    settings: dict[str, object],
    asked: bool | None,
    prefix: tuple[int, ...],
) -> None:
    loaded = load_tokenizer(folder(tmp_path, tokenizer, adds_bos, **settings), asked)
    assert loaded.prefix == prefix
    assert loaded.encode("a b").ids.tolist() == tokenizer.encode("a b").ids.tolist()


@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("stated", [{}, {"add_bos_token": None}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_two_files_that_begin_texts_otherwise_are_named_in_one_line(
    tmp_path: Path,
    tokenizer: FastTokenizer,
    adds_bos: bool,
    stated: dict[str, object],
    asked: bool | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = folder(tmp_path, tokenizer, adds_bos, bos_token="<s>", **stated)
    loaded, theirs = load_tokenizer(place, asked), AutoTokenizer.from_pretrained(place)("a")["input_ids"]
    load_tokenizer(place, asked)
    said = capsys.readouterr().err
    agree = [*loaded.prefix, *loaded.encode("a").ids] == theirs
    if agree or asked is not None:
        assert said == "" and loaded.disagreement is None
        return
    ours, other = ("<s>", "no token") if stated["add_bos_token"] else ("no token", "<s>")
    assert said == f"lexbench: in {place} {loaded.disagreement}\n" and said.count("\n") == 1
    assert f"texts begin with {ours}, by add_bos_token=" in said
    assert " of tokenizer_config.json, " in said and f"and with {other} by tokenizer.json beside it" in said
    assert "model.bos=true or model.bos=false" in said


@pytest.mark.parametrize("bos", [None, "<s>"])
def test_all_tokens_that_a_tokenizer_puts_in_front_begin_contexts(
    tmp_path: Path, tokenizer: FastTokenizer, bos: str | None
) -> None:
    """Follow GLM-4's file, which states no BOS."""
    saved = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    saved.add_special_tokens(["[gMASK]", "<sop>", "<|user|>"])
    ids = [(token, saved.token_to_id(token)) for token in ("[gMASK]", "<sop>")]
    saved.post_processor = processors.TemplateProcessing(single="[gMASK]:0 <sop>:0 $A:0", special_tokens=ids)
    saved.enable_padding(direction="left", length=16)  # a habit of the file
    saved.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": bos, "chat_template": "[gMASK]<sop><|user|>{{ messages[0]['content'] }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path, padding_side="right")
    text = "One day"
    expected = theirs(text, padding=False)["input_ids"]
    assert [*loaded.prefix, *loaded.encode(text).ids] == expected
    assert [*wrap_loaded_tokenizer(theirs).prefix, *loaded.encode(text).ids] == expected
    assert [token for token in framed(loaded, text)[:3] if token in loaded.prefix] == list(loaded.prefix)  # not twice
    assert load_tokenizer(tmp_path, False).prefix == ()


def test_bos_without_a_token_is_an_error(tmp_path: Path, tokenizer: FastTokenizer) -> None:
    with pytest.raises(ValueError, match=r"no BOS token: set model.bos=false"):
        load_tokenizer(folder(tmp_path, tokenizer, adds_bos=False), bos=True)


def test_a_folder_without_a_tokenizer_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .*: give a folder with tokenizer.json") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


CHATML = """{% if messages[0]['role'] != 'system' %}<|im_start|>system
Today is {{ strftime_now('%A, %d %b %Y') }} ({{ strftime_now('%Y-%m-%d') }}).<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
DAY = datetime.date(2024, 7, 26)
INST = "{{ bos_token }}{% for message in messages %}[INST] {{ message['content'] | trim }} [/INST]{% endfor %}"
PLAIN = "{% for message in messages %}<|user|>{{ message['content'] }}{{ eos_token }}{% endfor %}<|assistant|>"


@pytest.fixture
def chat_folder(tmp_path: Path, tokenizer: FastTokenizer) -> Callable[..., Path]:
    """A checkpoint's folder with a template and the special tokens that templates write."""

    def made(template: object, **settings: object) -> Path:
        saved = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
        saved.add_special_tokens(["</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>"])
        saved.save(str(tmp_path / "tokenizer.json"))
        content = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}, **settings}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
        return tmp_path

    return made


def their_chat(folder: Path, message: str, **values: object) -> list[int]:
    """One user message rendered by transformers."""
    from transformers import PreTrainedTokenizerFast

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    talk = [{"role": "user", "content": message}]
    encoded = theirs.apply_chat_template(
        talk, chat_template=settings["chat_template"], add_generation_prompt=True, return_dict=True, **values
    )
    return list(encoded["input_ids"])


def framed(loaded: FastTokenizer, message: str) -> list[int]:
    frame = loaded.frame(chat=True)
    return [*frame.before.tolist(), *loaded.encode(message).ids.tolist(), *frame.after.tolist()]


def test_without_a_chat_only_bos_begins(tokenizer: FastTokenizer) -> None:
    frame = tokenizer.frame(chat=False)
    assert (frame.before.tolist(), frame.after.tolist()) == ([0], [])
    bare = FastTokenizer(tokenizer._tokenizer, bos=0, begins_with_bos=False).frame(chat=False)
    assert (bare.before.tolist(), bare.after.tolist()) == ([], [])
    assert bare.before.dtype == bare.after.dtype == np.dtype(np.int64)


@pytest.mark.parametrize("bos", [True, False])
def test_a_chat_is_as_transformers_writes_it(chat_folder: Callable[..., Path], bos: bool) -> None:
    """A BOS from the template occurs once, whether or not BOS begins every context."""
    folder = chat_folder(INST)
    loaded = load_tokenizer(folder, bos)
    message = "What is the pass key?\nIt is here."
    assert framed(loaded, message) == their_chat(folder, message)
    assert framed(loaded, message).count(0) == 1


def test_a_conversation_is_as_transformers_writes_it(chat_folder: Callable[..., Path]) -> None:
    from transformers import PreTrainedTokenizerFast

    talk = [("system", "Be brief."), ("user", "Hi there"), ("assistant", "Yes?"), ("user", "What is it?")]
    folder = chat_folder(PLAIN)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
    said = [{"role": role, "content": content} for role, content in talk]
    whole = theirs.apply_chat_template(said, chat_template=PLAIN, add_generation_prompt=True, return_dict=True)
    loaded = load_tokenizer(folder, bos=False)
    pieces = loaded.talk(talk)
    assert np.concatenate(pieces).tolist() == list(whole["input_ids"])
    assert [loaded.decode(piece) for piece in pieces[1::2]] == [content for _, content in talk]


@pytest.mark.parametrize(
    "tag",
    [
        *("<think>", "<think>\n", "[THINK]", "<|begin_of_thought|>", "<seed:think>", "\u25c1think\u25b7"),
        *("<|channel|>analysis<|message|>", "<|channel>thought\n"),
        *("<think>\nOkay, ", "[THINK] So", "<|channel|>analysis<|message|>The user"),
    ],
)
def test_a_template_that_opens_a_thought_unasked_is_refused(chat_folder: Callable[..., Path], tag: str) -> None:
    """Whether it ignores the switch, or has none; told to think, it may."""
    asked = "{% if not enable_thinking is defined or enable_thinking %}" + tag + "{% else %}x</think>{% endif %}"
    closed = tag.replace("<", "</").replace("[", "[/").replace("\u25c1", "\u25c1/")
    for end, ignores in ((tag, True), (asked, False), (closed, False)):
        loaded = load_tokenizer(chat_folder(PLAIN + end), bos=False)
        thinks = loaded.as_chat("chat", None, thinking=True, thought=9)
        assert len(thinks.frame(chat=True).after) > 1
        assert loaded.opens_thought_by_default() == (end != closed)
        for silent in (loaded, loaded.as_chat("chat", None, thinking=False, thought=0)):
            if ignores:
                with pytest.raises(
                    ValueError, match=r"opens a thought, .*: set backend\.chat=true backend\.thinking=free"
                ):
                    silent.frame(chat=True)
                with pytest.raises(ValueError, match="opens a thought"):
                    silent.talk([("user", "Hi"), ("assistant", "Yes?"), ("user", "What?")])
            else:
                assert len(silent.frame(chat=True).after) > 1


def test_special_tokens_of_a_template_are_tokens_those_of_a_message_are_text(chat_folder: Callable[..., Path]) -> None:
    folder = chat_folder(PLAIN)
    loaded = load_tokenizer(folder, bos=False)
    assert framed(loaded, "What is it?") == their_chat(folder, "What is it?")
    frame = loaded.frame(chat=True)
    ids = {name: loaded._tokenizer.token_to_id(name) for name in ("<|user|>", "</s>", "<|assistant|>")}
    assert frame.before.tolist() == [ids["<|user|>"]]
    assert frame.after.tolist() == [ids["</s>"], ids["<|assistant|>"]]
    assert not set(ids.values()) & set(loaded.encode("x </s> <|user|>").ids.tolist())


def test_a_text_that_another_thread_reads_meanwhile_stays_text(
    chat_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's answers are read by several threads, one of which may read the template."""
    loaded = load_tokenizer(chat_folder(PLAIN), bos=True)
    alone = loaded.encode("<|user|>").ids.tolist()
    inner, found, others = loaded._tokenizer, list[list[int]](), list[threading.Thread]()

    class Slow:
        """The tokenizer, of which another thread has a text read while the template is."""

        def __setattr__(self, name: str, value: bool) -> None:
            setattr(inner, name, value)

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def encode(self, text: str, add_special_tokens: bool) -> object:
            if not inner.encode_special_tokens and not others:
                others.append(threading.Thread(target=lambda: found.append(loaded.encode("<|user|>").ids.tolist())))
                others[0].start()
                others[0].join(timeout=0.3)
            return inner.encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(loaded, "_tokenizer", Slow())
    [user] = loaded.template_tokens("<|user|>")
    others[0].join(timeout=30)
    assert inner.id_to_token(int(user)) == "<|user|>"
    assert found == [alone] and user not in alone


def test_white_space_that_begins_a_template_is_kept(chat_folder: Callable[..., Path]) -> None:
    for space in ("\n", "\n\n", " ", "  \n"):
        folder = chat_folder(space + PLAIN)
        assert framed(load_tokenizer(folder, bos=False), "Hi") == their_chat(folder, "Hi")


@pytest.mark.parametrize(("template", "written"), [(PLAIN, 0), (INST, 1)])
def test_a_chat_begins_with_bos_where_the_template_or_the_user_says_so(
    chat_folder: Callable[..., Path], template: str, written: int
) -> None:
    """Not by a rule of the tokenizer for other texts, of which transformers and servers take nothing for a chat."""
    folder = chat_folder(template, add_bos_token=True)
    message = "What is the pass key?"
    theirs = their_chat(folder, message)
    assert theirs.count(0) == written
    for bos, expected in ((None, theirs), (False, theirs), (True, [0, *theirs[written:]])):
        loaded = load_tokenizer(folder, bos)
        assert framed(loaded, message) == expected
        assert loaded.frame(chat=False).before.tolist() == [0] * (bos is not False)
        begins = (0,) if bos is not False and expected[0] == 0 else ()
        assert context_prefix(loaded, chat=True) == context_prefix(loaded.as_chat("x", None, False, 0), False) == begins
        note = "BOS, chat template" if begins else "no BOS, chat template"
        assert context_beginning(loaded, chat=True) == note
        assert context_prefix(loaded, chat=False) == loaded.prefix


def test_a_rendered_conversation_is_encoded_whole(chat_folder: Callable[..., Path]) -> None:
    """Tokens of a chat as transformers gives them: one joins the template's blank and the message's first letter."""
    folder = chat_folder(INST)
    loaded = load_tokenizer(folder)
    ours = loaded.rendered_tokens([("user", "Hi")]).tolist()
    assert ours == their_chat(folder, "Hi") and len(ours) == len(framed(loaded, "Hi")) - 1


def test_a_template_writes_the_same_day_always_and_no_thoughts(chat_folder: Callable[..., Path]) -> None:
    """Transformers' rendering on another day equals ours with that day."""
    folder = chat_folder(CHATML)
    loaded = load_tokenizer(folder, bos=False)
    ours = framed(loaded, "What?")
    text = loaded.decode(ours)
    assert text.startswith("system\nToday is Friday, 26 Jul 2024 (2024-07-26).\nuser\nWhat?\nassistant\n")
    assert text.endswith("<think>\n\n</think>\n\n")
    written = chat_folder(re.sub(r"\{\{ strftime_now\('(.*?)'\) \}\}", lambda form: DAY.strftime(form[1]), CHATML))
    assert "strftime_now" not in (folder / "tokenizer_config.json").read_text()
    assert ours == their_chat(written, "What?", enable_thinking=False)


def test_a_file_of_its_own_and_a_name_among_several_say_the_template(chat_folder: Callable[..., Path]) -> None:
    folder = chat_folder([{"name": "tool_use", "template": "none"}, {"name": "default", "template": INST}])
    named = framed(load_tokenizer(folder), "Hi")
    assert named == framed(load_tokenizer(chat_folder(INST)), "Hi")
    (folder / "chat_template.jinja").write_text(PLAIN)
    assert framed(load_tokenizer(folder, bos=False), "Hi") == framed(load_tokenizer(chat_folder(PLAIN), False), "Hi")
    (folder / "chat_template.jinja").write_bytes(b"\xa0" + PLAIN.encode())
    with pytest.raises(ConfigError, match=r"chat_template\.jinja must be text in UTF-8: download the tokenizer again"):
        framed(load_tokenizer(folder, bos=False), "Hi")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "needs a model with a chat template, this one has none: set task.chat=false"),
        ([{"name": "tool_use", "template": "x"}], "this one has none"),
        ("{% for", r"chat template of .* cannot be rendered \(.*\): set task.chat=false"),
        ("{{ raise_exception('tools only') }}", r"cannot be rendered \(tools only\): set task.chat=false"),
        ("{{ 'hello' }}", "does not contain the user message: set task.chat=false"),
    ],
)
def test_a_template_that_cannot_be_used_is_an_error_only_where_one_is_asked_for(
    chat_folder: Callable[..., Path], template: object, message: str
) -> None:
    loaded = load_tokenizer(chat_folder(template), bos=True)
    assert loaded.frame(chat=False).before.tolist() == [0]
    with pytest.raises(ValueError, match=message):
        loaded.frame(chat=True)


def test_a_tokenizer_without_any_template_has_no_chat(tokenizer: FastTokenizer) -> None:
    with pytest.raises(ValueError, match="this one has none"):
        tokenizer.frame(chat=True)


def test_pieces_of_a_text_join_where_a_tokenizer_puts_a_blank_before_each(shared: Path) -> None:
    """stories260K prepends blanks like Llama 2: a later piece has the tokens that it has inside the whole text."""
    tokenizer = load_tokenizer(shared / "stories260K-hf")
    pieces = ["Once there was a cat.", " The cat sat.", "\nIt was", " happy.", "\n\n  Then", " it ran", " "]
    joined = np.concatenate([tokenizer.encode(piece).ids for piece in pieces])
    assert joined.tolist() == tokenizer.encode("".join(pieces)).ids.tolist()
    assert tokenizer.decode(joined) == "".join(pieces)
    for piece in pieces:
        encoded = tokenizer.encode(piece)
        assert encoded.starts[0] == 0
        assert (np.diff(encoded.starts) >= 0).all()
        assert encoded.units(0, len(encoded.ids)) == (len(piece.encode()), len(piece.split()))


def test_a_hostile_expression_in_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    source = locate_checkpoint("lexbench:lexlet", None)
    page = json.loads((source / "tokenizer.json").read_text())
    expression = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**page, "pre_tokenizer": expression}))
    spoken = load_tokenizer(tmp_path, bos=False)
    with pytest.raises(ValueError, match=r"tokenizer cannot read a text .*: download tokenizer\.json again"):
        spoken.encode("a" * 28 + "b")


def test_half_a_character_as_a_token_is_one_line(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(locate_checkpoint("lexbench:lexlet"), tmp_path / "half"))
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**stated, "bos_token": "\ud800"}))
    with pytest.raises(ConfigError, match=r"token '\\ud800' must be whole characters"):
        load_tokenizer(folder)
