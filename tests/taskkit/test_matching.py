"""Matching of answers: lists at the start of a text, strings in a text."""

import pytest

from lexbench.taskkit import matching

NUMBER = r"\d+"
WORD = r"[a-z]+-[a-z]+"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("12, 34, and 56. 78", ["12", "34", "56"]),
        ("  \n12; 34 and 56", ["12", "34", "56"]),
        ("12 34\n56", ["12", "34", "56"]),
        ("12\n34\n56\n", ["12", "34", "56"]),
        ("12\n\n34", ["12", "34"]),
        ("\n- 12\n- 34.\n- **56**", ["12", "34", "56"]),
        ("1. 12\n2. 34", ["12", "34"]),
        (":\n\n• “12”\n• „34“", ["12", "34"]),
        ("12\n34 of them", ["12"]),
        ("12\n\nWhat is 34?", ["12"]),
        ("12\n1. The next", ["12"]),
        ("12. 34", ["12"]),
        ("12/34 | 56 & 78", ["12", "34", "56", "78"]),
        ("**12**, `34` (56)", ["12", "34", "56"]),
        ('["12", "34"]', ["12", "34"]),
        ("- 12", ["12"]),
        (": 12", ["12"]),
        ("12, 12", ["12", "12"]),
        ("12 or 34", ["12", "34"]),
        ("12.", ["12"]),
        ("12.\n34", ["12", "34"]),
        ("The number is 12", []),
        ("and", []),
        ("", []),
        (" \n ", []),
        ("x12", []),
        ("12x", []),
        ("12_", []),
        ("12.5", []),
        ("0.12", []),
        ("12-34", []),
        ("12 - 34", ["12", "34"]),
        ("-12", []),
        ("\n–12", []),
        ("12\n-34", ["12"]),
        ("12、34，56；78", ["12", "34", "56", "78"]),
        ("12\xa034", ["12", "34"]),
        ("12, 34.5", ["12"]),
    ],
)
def test_the_list_that_a_text_begins_with(text: str, items: list[str]) -> None:
    assert matching.leading_items(text, NUMBER) == items


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("brave-otter and Calm-Sponge", ["brave-otter", "calm-sponge"]),
        ("brave-otter, and calm-sponge", ["brave-otter", "calm-sponge"]),
        ("brave-otter-like", []),
        ("brave-otters", ["brave-otters"]),
        ("brave-otter2", []),
        ("android-phone", ["android-phone"]),
        ("otter", []),
    ],
)
def test_items_are_whole_words_in_lower_case(text: str, items: list[str]) -> None:
    assert matching.leading_items(text, WORD) == items


def test_an_item_may_be_a_choice_or_have_groups() -> None:
    assert matching.leading_items("yes, no, maybe", "yes|no") == ["yes", "no"]
    assert matching.leading_items("AB1 CD2", r"([A-Z])[A-Z](\d)") == ["ab1", "cd2"]


def test_an_item_that_matches_nothing_ends_the_list() -> None:
    assert matching.leading_items("12 34", r"\d*") == ["12", "34"]
    assert matching.leading_items(", , x", r"\d*") == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" 12, 34", 1),
        ("34 and 12.", 1),
        ("12", 0),
        ("12, 34, 56", 0),
        ("12, 34, 34", 0),
        ("12, 12", 0),
        ("The numbers are 12, 34", 0),
        (", ".join(str(number) for number in range(10, 100)), 0),
        ("", 0),
    ],
)
def test_strict_takes_exactly_the_expected_items_in_any_order(text: str, right: float) -> None:
    assert matching.strict_list_score(text, ["12", "34"], NUMBER) == right


def test_strict_counts_items_that_are_expected_twice_and_ignores_case() -> None:
    assert matching.strict_list_score("ab, AB", ["AB", "Ab"], "[a-z]+") == 1
    assert matching.strict_list_score("ab", ["AB", "Ab"], "[a-z]+") == 0


def test_a_no_inside_other_words_is_no_answer() -> None:
    for text in ("I do not know", "Not found in the text", "know", "No-one"):
        assert matching.strict_list_score(text, ["no"], "yes|no") == 0
    assert matching.strict_list_score("No.", ["no"], "yes|no") == 1


@pytest.mark.parametrize(
    ("references", "text", "right"),
    [
        (["no"], "I do not know", 0),
        (["no"], "Not found in the given documents", 0),
        (["no"], "No", 1),
        (["no"], " no.", 1),
        (["no"], "No, they are not.", 1),
        (["no"], "No information", 0),
        (["no"], "Yes", 0),
        (["no"], "yes, no", 0),
        (["no"], "No, yes", 0),
        (["yes"], "yes\nno", 1),
        (["yes"], "Yes: both", 1),
        (["3,677"], "3,677 people", 1),
        (["3,677 seated"], "3,677 people", 0),
        (["367"], "3,677", 0),
        (["Denver Broncos", "The Broncos", "Broncos"], "the Broncos", 1),
        (["Denver Broncos", "Broncos"], "Broncos of Denver", 1),
        (["Paris", "Paris, France"], "Paris, France", 1),
        (["Paris", "Paris, France"], "Paris, London", 0),
        (["Paris"], "Paris & London", 0),
        (["Paris"], "Paris", 1),
        (["Paris"], "London Paris", 0),
        (["salt and pepper"], "Salt and Pepper", 1),
        (["salt"], "salt and pepper", 0),
        (["The The"], "The The", 1),
        (["A"], "A", 1),
        (["A"], "B", 0),
        (["!"], "!", 1),
        (["Paris"], "", 0),
        (["Paris"], "\n \n Paris.\nLondon", 1),
        (["Paris"], "Paris; London", 0),
        (["Paris"], "Paris / London", 0),
        (["Paris"], "Paris | London", 0),
        (["Paris"], "Paris - London", 0),
        (["Paris"], "Paris – London", 0),
        (["Paris"], "Paris -", 0),
        (["Paris"], "Parisian", 0),
        (["Paris"], "the, Paris", 1),
        (["no"], "No no", 0),
        (["São Paulo"], "são paulo", 1),
    ],
)
def test_a_strict_phrase_comes_first_in_whole_words(references: list[str], text: str, right: float) -> None:
    assert matching.strict_phrase_score(text, references) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Paris, where he lives", 1),
        ("paris and so on", 1),
        ("The Paris - it is.\nLondon", 1),
        ("Paris, Londonderry", 1),
        ("Paris 11 May 1823", 1),
        ("Paris London", 0),
        ("Paris | LONDON", 0),
        ("Paris. London.", 0),
        ("Paris (London)", 0),
        ("Paris, or maybe/London", 0),
        ("Paris on May 1, 1823", 0),
        ("London, Paris", 0),
        ("", 0),
    ],
)
def test_where_all_that_might_be_listed_is_known_only_that_is_wrong(text: str, right: float) -> None:
    assert matching.strict_phrase_score(text, ["Paris"], ["London", "May 1, 1823", "1 May 1823"]) == right


def test_a_long_answer_is_read_in_steps_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of 2,000 words: as soon as it is longer than the reference it cannot equal it any more."""
    seen: list[int] = []
    whole = matching.normalise_as_squad

    def counted(text: str) -> str:
        seen.append(len(text))
        return whole(text)

    monkeypatch.setattr(matching, "normalise_as_squad", counted)
    assert matching.strict_phrase_score("word " * 2000, ["Paris"]) == 0
    assert matching.strict_phrase_score("the " * 2000 + "Paris", ["Paris"]) == 1
    assert sum(seen) < 10 * 4 * 2000


def test_an_answer_alone_is_right_whatever_others_there_are() -> None:
    assert (
        matching.strict_phrase_score("Paris", ["Paris"], [])
        == matching.strict_phrase_score("Paris.", ["Paris"], ["Rome"])
        == 1
    )


@pytest.mark.parametrize(
    ("text", "share", "any_of_them"),
    [("the Red one", 1 / 3, 1), ("red, GREEN and bluest", 1, 1), ("", 0, 0), ("re d", 0, 0), ("covered", 1 / 3, 1)],
)
def test_official_matching_is_by_substring_in_any_case(text: str, share: float, any_of_them: float) -> None:
    """RULER's string_match_all is the mean over the references, string_match_part their maximum."""
    expected = ["red", "green", "blue"]
    assert matching.contains_all(text, expected) == share
    assert matching.contains_any(text, expected) == any_of_them


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The  cat, a dog!", "cat dog"),
        ("An apple; the\tpie.\n", "apple pie"),
        ("Athena can a-b", "athena can ab"),
        ("3,677 people", "3677 people"),
        ("U.S.A.", "usa"),
        ("the", ""),
    ],
)
def test_normalised_is_as_squad_does_it(text: str, bare: str) -> None:
    """Lower case, then no punctuation, then no articles, then single blanks: by hand from the paper's script."""
    assert matching.normalise_as_squad(text) == bare


def test_numbers_before_items_of_one_line_are_taken_out() -> None:
    for text in (
        "1. ab-c 2. de-f 3. gh-i",
        " 1) ab-c, 2) de-f, 3) gh-i.",
        "ab-c, de-f, gh-i",
        "1. ab-c\n2. de-f\n3. gh-i",
    ):
        assert matching.leading_items(matching.remove_list_numbers(text), WORD) == ["ab-c", "de-f", "gh-i"]
    assert matching.remove_list_numbers("ab-c has 2. of") == "ab-c has 2. of"
