"""What a command says to do can be done on its command line: where a sentence names an argument, it names the flag."""

from __future__ import annotations

import re
from pathlib import Path

import consilience

PACKAGE = Path(consilience.__file__).parent
ROOMS = ("study", "runs")  # whose sentences commands show
ARGUMENT = re.compile(r"\b(resume|min_replies|without|replace|one_class|memory|message|keep_replies)=(True|\[|'|\.)?")
TEXT = re.compile(r'^\s*(?:[a-z_]+ = )?f?["\'](.*)["\']')


def test_sentences_that_name_an_argument_name_its_flag() -> None:
    found = 0
    for room in ROOMS:
        for file in (PACKAGE / room).rglob("*.py"):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                text = TEXT.match(line)
                if text is None or "co.run(" in line:  # what was begun from Python goes on there
                    continue
                for named in ARGUMENT.finditer(text[1]):
                    found += 1
                    flag = f"--{named[1].replace('_', '-')}"
                    assert flag in line, f"{file.name}:{number} names {named[0]} and not {flag}"
    assert found >= 6  # the search finds something
