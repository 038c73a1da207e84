"""Files and folders as documents, and what is said of those that are none."""

import codecs
import json
from pathlib import Path

import pytest

import lexbench
from lexbench.corpora import Document
from lexbench.corpora.files import Files


def documents(path: Path, **parameters: str | None) -> list[Document]:
    return list(Files(str(path), **parameters).documents())  # type: ignore[arg-type]


def test_a_text_is_split_stripped_and_empty_pieces_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "stories.txt"
    file.write_text("\n One.\n<|endoftext|>\n\n<|endoftext|>  Two é. <|endoftext|>")
    assert documents(file) == [Document("stories.txt#0", "One."), Document("stories.txt#2", "Two é.")]
    assert documents(file, separator=None) == [Document("stories.txt", file.read_text())]
    assert documents(file, separator="One.")[-1].name == "stories.txt#1"


def test_a_text_without_separators_is_one_document_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(" All of it.\n")
    assert documents(tmp_path / "book.txt") == [Document("book.txt", " All of it.\n")]


def test_a_folder_is_read_sorted_through_all_its_folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.md").write_text("in b <|endoftext|> whole")
    (tmp_path / "z.py").write_text("z = 1\n")
    (tmp_path / "c.jsonl").write_text('{"text": "first"}\n\n{"text": " "}\n{"text": "fourth"}\n')
    (tmp_path / "left_out.bin").write_bytes(b"\xff\xfe")
    (tmp_path / "empty.txt").write_text("\n")
    assert documents(tmp_path) == [
        Document("b/a.md", "in b <|endoftext|> whole"),
        Document("c.jsonl#1", "first"),
        Document("c.jsonl#4", "fourth"),
        Document("z.py", "z = 1\n"),
    ]


def test_the_mark_of_utf_8_at_the_start_of_a_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + "née".encode())
    (tmp_path / "b.jsonl").write_bytes(codecs.BOM_UTF8 + b'{"text": "line"}\n')
    assert documents(tmp_path) == [Document("a.txt", "née"), Document("b.jsonl#1", "line")]


def test_a_field_of_json_lines_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "no", "body": "half a pair \ud83d"}) + "\n")
    assert documents(tmp_path / "rows.jsonl", field="body") == [Document("rows.jsonl#1", "half a pair ?")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "good"}\n{"text": \n', r"a.jsonl line 2 must be JSON \(.*\): write one object a line"),
        ("a.jsonl", '"text"\n', "a.jsonl line 1 must be a JSON object, got str"),
        (
            "a.jsonl",
            '{"body": "x", "n": 1, "abstract": "y"}',
            "no text in field 'text', there is none: .* abstract, body",
        ),
        ("a.jsonl", '{"n": 1}', "no text in field 'text', there is none: choose corpus.field from nothing"),
        (
            "a.jsonl",
            '{"text": 1.5, "body": "x"}',
            "no text in field 'text', it is float: choose corpus.field from body",
        ),
        ("a.jsonl", '{"text": [1]}', "no text in field 'text', it is a list of int: choose corpus.field from text"),
        ("a.jsonl", '{"text": [{"a": 1, "b": ""}]}', "list of objects in field 'text': say by corpus.form .* a, b"),
        ("a.jsonl", '{"text": null}', "holds no text in"),
        ("a.txt", " \n", r"holds no text in .txt, .md, .py, .jsonl files: give another corpus.path"),
        ("a.csv", " \n", "holds no text"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        documents(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_path_and_bytes_that_are_no_text_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist: give corpus.path=FILE"):
        documents(tmp_path / "nowhere")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"latin.txt is not UTF-8 \(byte 3\): convert it"):
        documents(tmp_path)
    with pytest.raises(ValueError, match=r"corpus.path must name a file or a folder, got an empty text: give"):
        Files("")
    with pytest.raises(ValueError, match="separator must not be empty"):
        Files("x", separator="")


def test_the_fingerprint_follows_the_texts_and_not_the_place(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("text")
    here, there = Files(str(tmp_path / "here")), Files(str(tmp_path / "there"))
    assert here.fingerprint() == there.fingerprint()
    before = here.fingerprint()
    (tmp_path / "here" / "a.txt").write_text("texts")
    assert here.fingerprint() != before


def test_tinystories_are_as_many_as_their_separators_say(shared: Path) -> None:
    file = shared / "text/tinystories.txt"
    stories = documents(file)
    assert len(stories) == sum(1 for piece in file.read_text().split("<|endoftext|>") if piece.strip())
    assert all(story.text == story.text.strip() for story in stories)


def test_what_lies_deeper_is_found_by_its_path_and_lists_are_joined(tmp_path: Path) -> None:
    row = {"talk": {"title": "T", "turns": [{"who": "A", "said": "x"}, {"who": "B", "said": "y\nz"}]}, "a.b": "dot"}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**row, "text": ["one", "two"]}) + "\n")
    assert documents(file, field="talk.title") == [Document("rows.jsonl#1", "T")]
    assert documents(file, field="talk.turns", form="{who}: {said}") == [Document("rows.jsonl#1", "A: x\nB: y\nz")]
    assert documents(file, field="a.b")[0].text == "dot"
    assert documents(file)[0].text == "one\ntwo"
    with pytest.raises(
        ValueError, match=r"no text in field 'talk', it is dict: choose corpus.field from a.b, talk, text"
    ):
        documents(file, field="talk")
    for field in ("talk.chair", "talk.title.first", "nowhere.title"):
        with pytest.raises(ValueError, match=f"no text in field '{field}', there is none"):
            documents(file, field=field)
    for form in ("{speaker}", "{who", "{}"):
        with pytest.raises(ValueError, match=r"cannot be written as corpus.form .* name fields out of who, said"):
            documents(file, field="talk.turns", form=form)


def test_qmsum_meetings_say_who_says_what(shared: Path) -> None:
    file = shared / "text/qmsum_test.jsonl"
    meetings = list(lexbench.corpus("qmsum", path=str(file)).documents())
    assert len(meetings) == 35
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for meeting, row in zip(meetings, rows, strict=True):
        turns = row["meeting_transcripts"]
        assert len(meeting.text) == sum(len(turn["speaker"]) + len(turn["content"]) + 3 for turn in turns) - 1
    assert meetings[0].text.startswith("Lynne Neagle AM: Good afternoon, everyone. Welcome to the Children, Young")
    assert "\nBarry Hughes: Perfectly happy.\n" in meetings[0].text
    with pytest.raises(ValueError, match=r"line 1 has no text in field 'text', there is none: .* meeting_transcripts"):
        documents(file)
