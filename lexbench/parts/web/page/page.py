"""The HTML page: one file that shows run folders offline, or the same page served with samples on demand.

data.py      what charts and tables are drawn from     about.py    headlines, what is missing, provenance
samples.py   samples, compressed                       safety.py   escaping, and the content security policy
template.html.jinja, page.css and scripts; elements.js and charts.js are the board's, too
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lexbench.core.files import write_text
from lexbench.parts.web.page import about, data, headlines, safety, samples
from lexbench.report import looks
from lexbench.report.select import check_highlight
from lexbench.report.titles import corpus_of
from lexbench.stats import records
from lexbench.stats.records import LoadedCells

PAGE_SCRIPTS = ("elements.js", "charts.js", "page.js", "curves.js", "depths.js", "paired.js", "browser.js")
LIVE_SCRIPT = "live.js"
"""The script of the served page, that follows a running sweep."""


def write_page(
    folders: Sequence[Path], out: Path | None = None, highlight: Collection[str] = (), tables: int | None = None
) -> Path:
    """Write one self-contained HTML file that shows run folders; give its path.

    Args:
        folders: run folders, or folders of run folders.
        out: the file; None: report/report.html in the first folder.
        highlight: names of methods to show always, like those outside the registry.
        tables: tables to show, at most; None: all, or 100 of more than 5,000 cells.

    Raises ConfigError where there is no run.
    """
    out = Path(folders[0]) / "report" / "report.html" if out is None else Path(out)
    write_text(out, render_page(records.load_cells(folders), folders, highlight=highlight, tables=tables))
    return out


def render_page(
    loaded: LoadedCells,
    folders: Sequence[Path],
    served: bool = False,
    budget: int = samples.MAX_SAMPLES_BYTES,
    highlight: Collection[str] = (),
    tables: int | None = None,
) -> str:
    """The whole page.

    Args:
        loaded: the cells to show.
        folders: where they come from: named on the page, and read for jobs/*.json.
        served: samples are fetched from samples/<cell id>.json, not embedded; live.js is there, too.
        budget: bytes of the page that samples may take; beyond it, the first of each cell are embedded.
        highlight: names of methods to show always.
        tables: tables to show, at most; None: all, or 100 of more than 5,000 cells.
    """
    check_highlight((each.cell.method for each in loaded.finished), highlight)
    measured = data.PageData.of(loaded.finished, highlight, tables)
    told = [*headlines.context_headlines(measured), *headlines.metric_headlines(measured)]
    sentences = {each["id"]: each["lead"] for each in reversed(told) if each["lead"]}
    cells, kept = ({}, None) if served else samples.embed_samples(measured.shown_cells(loaded.finished), budget)
    provenances, configurations, unread = about.read_jobs(folders)
    live = [LIVE_SCRIPT] if served and _package_file(LIVE_SCRIPT).is_file() else []
    scripts = [_package_file(name).read_text(encoding="utf-8") for name in (*PAGE_SCRIPTS, *live)]
    assert not any("</script" in script.lower() or "<!--" in script for script in scripts), "a script ends its element"
    style = _package_file("page.css").read_text(encoding="utf-8") + hue_rules()
    return (
        template_environment()
        .get_template("template.html.jinja")
        .render(
            policy=Markup(safety.security_policy(scripts, [style], served)),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            data=Markup(
                safety.script_json(
                    {
                        "settings": data.settings_data(measured),
                        "families": looks.FAMILY_ORDER,
                        "sentences": sentences,
                        "kept": kept,
                    }
                )
            ),
            cells=cells,
            kept=kept,
            served=served,
            folders=[str(folder) for folder in folders],
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            counts=about.count_contents(loaded, measured),
            sentence=sentences.get(measured.settings[0][0].setting, "") if measured.settings else "",
            headlines=told,
            terms=headlines.MEANING_OF_COLUMN,
            settings=[group[0] for group in measured.settings],
            name=measured.name,
            refusals=about.refused_cells(measured),
            losses=about.incomplete_cells(measured),
            unfinished=loaded.unfinished,
            problems=[*loaded.problems, *unread],
            left_out=measured.left_out,
            provenances=provenances,
            configurations=configurations,
        )
    )


def hue_rules() -> str:
    """Rules for the colours of lines, .hue-0 the baseline's: the same as in figures, and their like on a dark page."""
    pairs = enumerate(zip(looks.LIGHT_PAGE_COLOURS, looks.DARK_PAGE_COLOURS, strict=True))
    return "".join(f".hue-{place} {{ color: light-dark({light}, {dark}); }}\n" for place, (light, dark) in pairs)


def _package_file(name: str) -> Any:
    return files(__package__) / name


def template_environment() -> jinja2.Environment:
    """Templates of the page, in which everything is escaped and made visible."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, ""),
        autoescape=True,
        finalize=_make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["corpus"] = corpus_of
    made.filters["grouped"] = lambda number: f"{number:,}"
    made.filters["indented"] = safety.indented_json
    return made


def _make_visible(value: Any) -> Any:
    return safety.make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


__all__ = ["render_page", "samples", "write_page"]
