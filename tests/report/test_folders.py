"""Folders are left out of what a report says, blanks in their names included."""

from __future__ import annotations

import pytest

from consilience.report.run_page import run_page
from consilience.report.schema.folders import hide_folders


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("/home/anna/My Study/va.reply is not used: it is old.", "va.reply is not used: it is old."),
        ("Left out: /a b/x.reply and /c d/y.reply.", "Left out: x.reply and y.reply."),
        ("/home/a/x.reply, /home/b c/y.reply: refused; see /d e/f.md", "x.reply, y.reply: refused; see f.md"),
        (r"C:\Users\Anna B\va.reply is bad", "va.reply is bad"),
        ("See ~/my files/a.csv.", "See a.csv."),
        ("'/data/St. Mary, ward 3/va.csv' cannot be read", "'va.csv' cannot be read"),
        ("/home/anna/Dr. Who/va.reply is bad: use and/or", "va.reply is bad: use and/or"),
        ("`/srv/a b/c.toml`: no", "`c.toml`: no"),
        ("(/opt/x y/z.csv)", "(z.csv)"),
    ],
)
def test_a_path_becomes_its_files_name(sentence: str, shown: str) -> None:
    assert hide_folders(sentence) == shown


@pytest.mark.parametrize("sentence", ["and/or, 1/2, a / b/c", "12 km/h", "the site /hospital", "train/test rows", ""])
def test_what_is_no_path_stays(sentence: str) -> None:
    assert hide_folders(sentence) == sentence


def test_a_page_shows_no_folder() -> None:
    page = run_page({"method": "fedavg", "data": "/home/anna/My Study", "warnings": ["/home/anna/My X/a.csv: old."]})

    assert "anna" not in page
    assert "a.csv: old." in page
