"""A check as machines read it: GitHub annotations, JUnit XML, JSON; and the command that prints and writes it all."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from lexbench.core.errors import ConfigError
from lexbench.core.files import refuse_record_file, write_bytes, write_text
from lexbench.core.text import plain_text
from lexbench.report import formats
from lexbench.report.check.certificate import certificate_data, proof_of
from lexbench.report.check.check import Check, check_runs, tolerances_of
from lexbench.report.check.plan import update_text
from lexbench.report.check.text import (
    CheckNoteKind,
    alteration_text,
    check_as_markdown,
    check_notes,
    reason_text,
    terminal_text,
    verdict_numbers,
)
from lexbench.report.notes import change_text, note_text
from lexbench.report.sheet import Heading
from lexbench.stats.alterations import Alteration
from lexbench.stats.intervals import SIGNIFICANCE_LEVEL
from lexbench.stats.metrics import display_factor, display_unit
from lexbench.stats.regressions import Verdict, VerdictStatus

MAX_ANNOTATIONS_OF_KIND = 10
"""Annotations of one kind that GitHub shows per step."""
SEVERITY_OF_NOTE_KIND = {
    **dict.fromkeys((CheckNoteKind.LOST, CheckNoteKind.NOT_COMPARABLE, CheckNoteKind.NOT_PROVEN), "error"),
    **dict.fromkeys((CheckNoteKind.ALTERED, CheckNoteKind.CHANGED_QUESTIONS), "error"),
    **dict.fromkeys(
        (CheckNoteKind.DOUBTED, CheckNoteKind.UNPAIRED, CheckNoteKind.NO_POWER, CheckNoteKind.NOT_READABLE), "warning"
    ),
    **dict.fromkeys((CheckNoteKind.GAINED, CheckNoteKind.NEW), "notice"),
}
"""Level of an annotation, by the kind of its note; other notes have none."""


def check_command(
    folders: Sequence[Path],
    baseline_file: Path,
    *,
    tolerance: Sequence[str] = (),
    update: bool = False,
    allow_blind: bool = False,
    allow_changed: bool = False,
    junit_file: Path | None = None,
    markdown_file: Path | None = None,
    github: bool = False,
    as_data: bool = False,
    certificate_file: Path | None = None,
    colour: bool = False,
) -> tuple[str, int]:
    """`lexbench check`: the text to print and the exit code; writes the named files.

    ConfigError where there is nothing to compare; on GitHub exit code 2 instead.
    """
    tolerances = tolerances_of(tolerance)
    written = {"--certify": certificate_file, "--junit": junit_file, "--markdown": markdown_file}
    _refuse_shared_files(baseline_file, written)
    if update:
        compared = {**written, "--json": as_data, "--allow-changed": allow_changed}
        if given := [option for option, value in compared.items() if value]:
            raise ConfigError(f"--update writes a baseline and compares nothing: leave {given[0]} out")
        return update_text(folders, baseline_file, tolerances, allow_blind), 0
    if allow_blind:
        raise ConfigError("--blind accepts a baseline in which losses cannot be found: give it with --update")
    try:
        found = check_runs(folders, baseline_file, tolerances, certificate_file is not None, allow_changed)
    except ValueError as error:
        if not github:
            raise
        said = f"NOT COMPARABLE: {plain_text(error)}"
        if markdown_file is not None:
            write_text(markdown_file, formats.sheet_markdown([Heading(f"lexbench check: {said}")]))
        return f"{said}\n{annotation('error', 'lexbench check', said)}", 2
    if junit_file is not None:
        write_bytes(junit_file, junit_xml(found))
    if markdown_file is not None:
        write_text(markdown_file, check_as_markdown(found))
    if certificate_file is not None:
        write_text(certificate_file, formats.as_json(certificate_data(found, baseline_file)) + "\n")
    shown = formats.as_json(check_data(found)) if as_data else terminal_text(found, colour)
    return "\n".join([shown, *(github_annotations(found) if github else [])]), found.code


def _refuse_shared_files(baseline_file: Path, written: Mapping[str, Path | None]) -> None:
    """ConfigError where a file to write is the baseline, that of another option, or one of records."""
    taken = {baseline_file.resolve(): "the baseline"}
    for option, file in written.items():
        if file is None:
            continue
        refuse_record_file(option, file)
        if whose := taken.get(file.resolve()):
            raise ConfigError(f"{option} {file} is {whose}, which it would replace: give another file")
        taken[file.resolve()] = f"the file of {option}"


def github_annotations(found: Check) -> list[str]:
    """Workflow commands of GitHub Actions, at most ten of a kind; the last one says how many more there are."""
    kinds: dict[str, list[str]] = {"error": [], "warning": [], "notice": []}
    for note in check_notes(found):
        if note.kind in SEVERITY_OF_NOTE_KIND:
            kinds[SEVERITY_OF_NOTE_KIND[note.kind]].append(str(note))
    lines = []
    for kind, said in kinds.items():
        if len(said) > MAX_ANNOTATIONS_OF_KIND:
            said = [
                *said[: MAX_ANNOTATIONS_OF_KIND - 1],
                f"and {len(said) - MAX_ANNOTATIONS_OF_KIND + 1} more, see the log",
            ]
        lines += [annotation(kind, f"lexbench check: {found.word.lower()}", note) for note in said]
    return lines


def annotation(kind: str, title: str, note: str) -> str:
    """A workflow command of GitHub Actions; kind: error, warning or notice."""
    return f"::{kind} title={_property(title)}::{_data(plain_text(note))}"


def _data(message: str) -> str:
    """A message as the runner reads it back: %, CR and LF are escaped."""
    return message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(message: str) -> str:
    """A property's value: there colons and commas, too."""
    return _data(message).replace(":", "%3A").replace(",", "%2C")


JUNIT_TAG_OF_STATUS = {
    VerdictStatus.REGRESSED: "failure",
    VerdictStatus.NOT_COMPARABLE: "error",
    VerdictStatus.NOT_PROVEN: "error",
    VerdictStatus.CHANGED: "error",
    VerdictStatus.NEW: "skipped",
}
"""Element inside a test case, by the verdict; others pass."""


def junit_xml(found: Check) -> bytes:
    """JUnit XML with a case per comparison: regressed is a failure, not comparable an error, new is skipped.

    A method whose attention is another one is a case of its own, and a failure.
    """
    tags = [JUNIT_TAG_OF_STATUS.get(each.status, "") for each in found.verdicts]
    every = [*tags, *["failure"] * len(found.altered)]
    counts = {"tests": len(every), "failures": every.count("failure"), "errors": every.count("error")}
    about = {"name": "lexbench check", **{name: str(count) for name, count in counts.items()}}
    about |= {"skipped": str(tags.count("skipped")), "time": "0"}
    page = Element("testsuites", about)
    suite = SubElement(page, "testsuite", about)
    properties = SubElement(suite, "properties")
    SubElement(properties, "property", {"name": "baseline", "value": plain_text(found.baseline)})
    for each, tag in zip(found.verdicts, tags, strict=True):
        _add_case(suite, each, tag)
    for altered in found.altered:
        case = {"name": f"attention of {altered.method}", "classname": f"{altered.model}.attention"}
        element = SubElement(suite, "testcase", {key: plain_text(text) for key, text in case.items()})
        SubElement(element, "failure", {"message": plain_text(alteration_text(altered)), "type": "changed"})
    written: bytes = tostring(page, encoding="utf-8", xml_declaration=True)
    return written


def _add_case(suite: Element, verdict: Verdict, tag: str) -> None:
    """Add the test case of a verdict, with an element `tag` inside unless it is empty."""
    cell, said = verdict.cell, plain_text(verdict_numbers(verdict))
    name = f"{verdict.metric or 'nothing scored'} of {cell.method} at {cell.length}, seed {cell.seed}"
    about = {"name": plain_text(name), "classname": plain_text(f"{cell.model}.{cell.task}")}
    case = SubElement(suite, "testcase", about)
    if tag:
        SubElement(case, tag, {"message": said, "type": verdict.status.value})
    else:
        SubElement(case, "system-out").text = plain_text(f"{verdict.status.value}: {said}")


def check_data(found: Check) -> dict[str, Any]:
    """The check as plain data; values and differences in the unit given beside them."""
    return {
        "verdict": found.word.lower(),
        "code": found.code,
        "baseline": found.baseline,
        "level": SIGNIFICANCE_LEVEL,
        "comparisons": len(found.compared),
        "changes": [asdict(each) for each in found.changes],
        "alterations": [_alteration_row(each) for each in found.alterations],
        "smallest_loss_found": found.smallest,
        "unspoken": [note_text(each) for each in found.unspoken],
        "problems": found.problems,
        "checksum": found.checked,
        "measured": found.measured,
        "verdicts": [_row_of(each) for each in found.verdicts],
    }


def _alteration_row(found: Alteration) -> dict[str, Any]:
    slots = [{"slot": list(each.path), "before": each.before, "after": each.after} for each in found.slots]
    return {"model": found.model, "method": str(found.method), "lengths": list(found.lengths), "slots": slots}


def _row_of(verdict: Verdict) -> dict[str, Any]:
    cell, found, metric = verdict.cell, verdict.found, verdict.metric or ""
    about = {name: getattr(cell, name) for name in ("model", "task", "length", "seed", "trained_length")}
    about["method"] = str(cell.method)
    row = {**about, "metric": verdict.metric, "unit": display_unit(metric), "status": verdict.status.value}
    row["reason"] = reason_text(verdict)
    if found is not None and found.difference is not None:
        row |= found.numbers(display_factor(metric))
        row |= {name: count for name, count in found.counts().items() if name != "unpaired"}
    unpaired = change_text(verdict.unpaired) if verdict.unpaired else None
    if verdict.proof is not None:
        row["proof"] = proof_of(verdict)
    return {**row, "tolerance": verdict.tolerance, "p": verdict.p, "p_holm": verdict.p_holm, "unpaired": unpaired} | {
        "smallest_loss_found": verdict.smallest
    }
