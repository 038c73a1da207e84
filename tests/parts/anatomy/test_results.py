"""results/anatomy.md is what the kept samples give."""

from lexbench.parts.anatomy import page
from lexbench.parts.anatomy.contrasts import controls, dropped_wordings
from tools import anatomy


def test_the_verdicts_and_controls_of_the_page_are_those_of_its_samples() -> None:
    text = anatomy.PAGE.read_text()
    for model, found in anatomy.kept():
        own = text.partition(f"# {model}\n")[2]
        dropped = dropped_wordings(found)
        checks = controls(found, dropped)
        assert all(check.passed for check in checks)
        for line in page.screen(found.without(dropped), checks):
            assert line in own
        assert (anatomy.FOLDER / f"{model}.svg").is_file()
