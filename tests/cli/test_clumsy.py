"""Clumsy words and odd files: one sentence, an exit code, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import Invoke

from consilience.cli import screen
from consilience.cli.given import read_options
from consilience.errors import InputError

TABLE = "age,bp,sick\n" + "\n".join(f"{30 + i % 9},{110 + 7 * i % 11},{i % 2}" for i in range(40)) + "\n"
RUN = ["run", "fedavg", "--data", "moons", "--model", "linear", "--sites", "3", "--no-bounds", "--rounds", "3"]
REFUSED = ["--set", "inference=CyclicalSGHMC", "--set", "inference.epochs=1"]  # by the sampler, in the first round

STOPPING = """
from pathlib import Path
from torch import nn
stopped = []
class Net(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.layer = nn.Linear(features, outputs)
    def forward(self, x):
        if not stopped and Path("r x/state.safetensors").exists():
            stopped.append(True)
            raise KeyboardInterrupt
        return self.layer(x)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(TABLE)
    return path


def test_ctrl_c_in_a_run_says_how_to_resume_it_and_the_rounds_are_kept(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupted_net.py").write_text(STOPPING)  # a network that presses Ctrl-C once a round is saved
    monkeypatch.syspath_prepend(tmp_path)
    words = [word.replace("linear", "interrupted_net:Net") for word in RUN]
    code, out, err = invoke(*words, "--engine", "sequential", "--out", "r x")
    assert code == 130 and not out
    assert "Stopped. Finished rounds are kept: continue with `consilience run --resume 'r x'`." in err
    assert not json.loads((tmp_path / "r x" / "run.json").read_text())["finished"]

    code, _, err = invoke("run", "--resume", "r x", "--model", "interrupted_net:Net")
    assert code == 0, err
    invoke(*words, "--engine", "sequential", "--out", "whole")
    resumed, whole = (tmp_path / folder / "state.safetensors" for folder in ("r x", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("words", ["inspect rows.csv", "study new trial --like rows.csv --target sick"])
def test_ctrl_c_anywhere_is_answered_with_a_sentence(
    invoke: Invoke, table: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def press(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("consilience.data.formats.read_delimited", press)
    code, out, err = invoke(*words.split())
    assert (code, out) == (130, "")
    assert err == "Stopped. No file is left half written: run the same command again.\n"
    assert [path.name for path in table.parent.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("empty", ["--delimiter |", "--delimiter=", "--out |", "--split |", "|"])
def test_an_empty_word_is_not_one_that_was_left_out(invoke: Invoke, table: Path, empty: str) -> None:
    name = empty.rstrip(" |=")
    words = [word.strip("|") for word in empty.split()]
    code, out, err = invoke("run", "mixture", "--data", "rows.csv", "--target", "sick", *words)
    assert code == 2 and not out and err.count("\n") == 1
    assert f"{name or 'One of the words'} is empty: give a" in err
    assert [path.name for path in table.parent.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(("name", "named"), [("delimiter", "one character"), ("decimal", "a point or a comma")])
def test_an_empty_mark_is_refused_though_it_is_not_typed(name: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_options({name: ""})


def test_more_sites_than_rows_are_refused_before_they_are_named(invoke: Invoke) -> None:
    code, _, err = invoke("run", "exact", "--data", "moons", "--sites", "999999")
    assert code == 2 and "too few to train on at 999999 sites" in err


def test_lines_for_a_pipe_are_not_filled_up_with_spaces(invoke: Invoke, table: Path) -> None:
    shown = [invoke("inspect", "rows.csv")[1], invoke("methods")[1], invoke(*RUN, "--out", "r")[1]]
    assert not screen.out.is_terminal
    for text in shown:
        assert len(text.splitlines()) > 3
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.usefixtures("unhurried")
def test_a_run_that_was_refused_before_its_first_round_leaves_its_folder_free(invoke: Invoke, tmp_path: Path) -> None:
    words = ["run", "mixture", *RUN[2:-2], "--out", "r"]
    code, _, err = invoke(*words, *REFUSED)
    assert code == 2 and "need 10 epochs" in err
    assert (tmp_path / "r" / "run.json").exists()
    words += ["--set", "inference.epochs=10"]
    assert invoke(*words)[0] == 0
    code, _, err = invoke(*words)
    assert code == 2 and "already holds a run: continue it with resume=True (--resume)" in err


@pytest.mark.usefixtures("unhurried")
def test_a_folder_with_a_space_is_quoted_where_a_command_is_named(invoke: Invoke, tmp_path: Path) -> None:
    words = ["run", "mixture", *RUN[2:-2], "--out", "é x"]
    assert invoke(*words, *REFUSED)[0] == 2
    code, _, err = invoke("report", "é x")
    assert code == 2 and "`consilience run --resume 'é x'`" in err


HUGE = "9" * 40


@pytest.mark.parametrize(("row", "what"), [(f"31,{HUGE},1", f"'{HUGE}' in"), (f"31,117,{HUGE}", "the target")])
def test_a_number_that_no_network_can_hold_is_named_with_its_line(
    invoke: Invoke, table: Path, row: str, what: str
) -> None:
    table.write_text(TABLE.replace("31,117,1", row, 1))
    code, _, err = invoke("run", "exact", "--data", "rows.csv", "--target", "sick", "--task", "regression")
    assert code == 2 and err.count("\n") == 1
    assert f"rows.csv, line 3: {what}" in err and "larger than networks can compute with" in err


def test_a_warning_is_said_once_though_the_table_is_read_twice(invoke: Invoke, table: Path) -> None:
    head, *rows = TABLE.splitlines()
    table.write_text("\n".join([f"id,{head}", *(f"{k},{row}" for k, row in enumerate(rows))]))
    code, _, err = invoke("run", "mixture", "--data", "rows.csv", "--target", "sick", "--no-bounds")
    assert code == 0 and err.count("Column 'id' has a value of its own in every row") == 1, err
