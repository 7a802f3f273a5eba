"""The reports in a real browser: phone and desktop, light and dark, keyboard and print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import shown
from browser import Browser, Page, installed
from reports import classification, comparison, regression, results

from consilience.report.reproduction_page import reproduction_page
from consilience.report.run_page import comparison_page, run_page
from consilience.report.study_page import study_page

pytestmark = pytest.mark.skipif(installed() is None, reason="Chromium is not installed (Debian: apt install chromium)")

PAGES = {
    "run": lambda _: run_page(classification(rounds=5)),
    "regression": lambda _: run_page(regression()),
    "few rows": lambda _: run_page({**classification(), "smallest_count": 10}),
    "study": lambda folder: study_page(shown(folder)),
    "comparison": lambda _: comparison_page(comparison()),
    "reproduction": lambda _: reproduction_page(results()),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(str(installed()), tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, made in PAGES.items():
        (folder / f"{name}.html").write_text(made(folder), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(390, "light", marks=pytest.mark.slow),
        (1280, "light"),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
    ],
)
def test_a_report_opens_quietly_and_fits(
    browser: Browser, files: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    with Page(browser, files[name], width, scheme) as page:
        assert page.complaints() == []
        assert page.requests() == [files[name].as_uri()]  # nothing else is asked for
        assert page.run("document.documentElement.scrollWidth") <= width  # tables scroll inside, the page does not
        background = page.run("getComputedStyle(document.body).backgroundColor")
        assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 27)"}[scheme]
        tall = page.run("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)")
        assert min(tall) > 80  # every figure is drawn
        covered = page.run("""[...document.querySelectorAll('figcaption, h2, .lead, dd')].filter(e => {
            const box = e.getBoundingClientRect(); return box.right > innerWidth + 1 || box.left < -1; }).length""")
        assert covered == 0


COLUMN = (
    "[...document.querySelectorAll('.comparison tbody:first-of-type tr')].map(r => r.cells[{}]?.firstChild.textContent)"
)


def test_tables_sort_by_mouse_and_keyboard(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["comparison"]) as page:
        nll = COLUMN.format(1)
        assert page.run(nll)[1:] == [
            "4.441",
            "0.552",
            "1.285",
        ]  # as the comparison has them; the first row is the group's

        page.run("document.querySelector('.comparison th[data-column=\"1\"] button').click()")
        assert page.run(nll)[1:] == ["0.552", "1.285", "4.441"]
        page.run("document.querySelector('.comparison th[data-column=\"1\"] button').focus()")
        page.press("Enter")
        assert page.run(nll)[1:] == ["4.441", "1.285", "0.552"]
        assert page.run("document.querySelector('.comparison th[data-column=\"1\"]').ariaSort") == "descending"

        page.run("document.querySelector('.comparison thead tr:first-child th:last-child button').click()")
        sent = COLUMN.format(
            len(page.run("[...document.querySelector('.comparison tbody tr:nth-child(2)').cells].map(c => 1)")) - 1
        )
        assert page.run(sent)[1:] == ["350.2 kB", "2.1 MB", "3.5 MB"]  # by their size, not as text
        groups = page.run("[...document.querySelectorAll('th[scope=rowgroup]')].map(t => t.textContent)")
        assert groups[0] == "The server needs no data" and len(groups) == 4
        assert page.complaints() == []


def test_every_heading_sorts_the_column_below_it(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["comparison"]) as page:
        numbers = page.run(
            "[...document.querySelectorAll('.comparison th[data-column]')].map(t => Number(t.dataset.column))"
        )
        cells = page.run("document.querySelector('.comparison tbody tr:nth-child(2)').cells.length")
        assert sorted(numbers) == list(range(cells))
        at = page.run("""[...document.querySelectorAll('.comparison th[data-column]')].map(t => {
            const own = t.getBoundingClientRect();
            const cell = document.querySelector('.comparison tbody tr:nth-child(2)').cells[t.dataset.column];
            return Math.abs(own.right - cell.getBoundingClientRect().right); })""")
        assert max(at) < 2  # a heading ends where its column ends


def test_sections_fold_by_keyboard(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["run"]) as page:
        visible = "document.querySelector('.figures figure').checkVisibility()"
        assert page.run(visible)
        page.run("document.querySelector('.figures summary').focus()")
        page.press("Enter")
        assert not page.run(visible)
        page.press("Enter")
        assert page.run(visible)


def test_everything_that_acts_can_be_reached_by_tab(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["comparison"]) as page:
        wanted = page.run("document.querySelectorAll('.comparison button, main > section summary').length")
        seen = set()
        for _ in range(wanted + 10):
            page.press("Tab")
            seen.add(page.run("document.activeElement.tagName + document.activeElement.textContent.trim()"))
        assert {"SUMMARYScores, by what the server needs", "BUTTONMethod", "BUTTONUp"} <= seen


def test_text_stands_out_from_what_is_behind_it(browser: Browser, files: dict[str, Path]) -> None:
    script = """(() => {
      const linear = x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
      const light = c => { const v = c.map(x => linear(x / 255));
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const parse = c => c.match(/[\\d.]+/g).map(Number);
      const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
      const poor = [];
      for (const e of document.querySelectorAll('h1, h2, h3, p, li, dt, dd, th, td, summary, figcaption, .span')) {
        if (!e.checkVisibility() || !e.textContent.trim()) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((p, q) => q - p);
        if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(e.textContent.trim().slice(0, 40));
      }
      return poor; })()"""
    for scheme in ("light", "dark"):
        with Page(browser, files["comparison"], scheme=scheme) as page:
            assert page.run(script) == []


def test_it_prints(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["run"], scheme="dark") as page:
        page.call(
            "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
        )
        assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"  # paper stays white
        assert len(page.call("Page.printToPDF", printBackground=True)["data"]) > 10_000
    with Page(browser, files["comparison"]) as page:
        page.call("Emulation.setEmulatedMedia", media="print")
        heads = "[...document.querySelectorAll('thead th button')].map(b => getComputedStyle(b).display)"
        assert set(page.run(heads)) == {"contents"}  # or a head that is repeated on page 2 lacks what can be sorted by


def test_a_study_shows_no_small_cell(browser: Browser, files: dict[str, Path]) -> None:
    small = {n for site in classification()["per_site"] for n in site["labels"] if 0 < n < 10}
    assert small  # or this would show nothing
    with Page(browser, files["few rows"]) as page:
        cells = page.run("[...document.querySelectorAll('.figures details table td')].map(t => t.textContent)")
        assert "< 10" in cells
        page.run("""holding = [...document.querySelectorAll('.figures > details')].find(d =>
            d.querySelector('h2').textContent.startsWith('Class counts'))""")
        assert "Counts from 1 to 9 are left blank" in page.run("holding.textContent")
        texts = page.run("[...holding.querySelectorAll('td, svg text')].map(t => t.textContent)")
        texts = [t for t in texts if t not in {str(c) for c in range(10)}]  # the axes' names of classes and sites
        assert not {t for t in texts if t.isdecimal() and 0 < int(t) < 10}


def test_a_study_folds_sorts_and_shows_no_example(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["study"]) as page:
        titles = page.run("[...document.querySelectorAll('h2')].map(t => t.textContent)")
        assert titles == [
            "In plain words",
            "Warning",
            "Scores",
            "Scores by site",
            "Class counts by site",
            "Influence by site",
            "Communication",
            "Provenance",
        ]
        page.run("document.querySelectorAll('.figures details details').forEach(d => d.open = true)")
        page.run("document.querySelector('.figures th[data-column=\"2\"] button').click()")
        scores = page.run(
            "[...document.querySelector('.figures table').tBodies[0].rows].map(r => r.cells[2].textContent)"
        )
        assert [float(s) for s in scores] == sorted(float(s) for s in scores) and len(scores) == 3
        page.run("document.querySelector('.figures summary').click()")
        assert not page.run("document.querySelector('.figures figure').checkVisibility()")
        assert page.complaints() == []


def test_ours_beside_theirs_sorts_by_distance(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["reproduction"]) as page:
        page.run("document.querySelector('.comparison th[data-column=\"4\"] button').click()")
        assert page.run(COLUMN.format(4))[:3] == ["0.0", "+1.1", "+8.9"]
        assert page.complaints() == []


def test_a_wide_table_says_that_it_scrolls_until_it_is_at_its_end(browser: Browser, files: dict[str, Path]) -> None:
    shown = """getComputedStyle(document.querySelector('.comparison .more')).visibility"""
    with Page(browser, files["comparison"], 390) as page:
        page.run("new Promise(requestAnimationFrame)")
        assert page.run("document.querySelector('.comparison .scroll').classList.contains('wide')")
        assert page.run(shown) == "visible"
        page.run("document.querySelector('.comparison .scroll').scrollLeft = 100000")
        page.run("document.querySelector('.comparison .scroll').dispatchEvent(new Event('scroll'))")
        assert page.run(shown) == "hidden"
        names = page.run(
            "[...document.querySelectorAll('.comparison th[scope=row]')].map(e => e.scrollWidth <= e.clientWidth)"
        )
        assert all(names)  # names of methods are wrapped, not cut


def test_the_first_page_of_a_study_is_in_plain_words(browser: Browser, files: dict[str, Path]) -> None:
    with Page(browser, files["study"]) as page:
        questions = page.run("[...document.querySelectorAll('.plain.first dt')].map(e => e.textContent)")
        assert questions == [
            "What was done",
            "What left each site",
            "What is protected",
            "What is not protected",
            "Who signed",
        ]
        assert page.run("document.querySelector('.plain details').open")
        signed = page.run("[...document.querySelectorAll('.plain dd')].at(-1).textContent")
        assert "north" in signed and "ed25519" not in signed
