"""The one-shot tables: the page is that of its results, and NIID-Bench's split deals every row once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.benchmark.trials import collect_trials, mean_with_interval, paired_difference, replace_between
from consilience.data import Data
from consilience.data.splits.split import Rows
from consilience.disk.writing import write_whole
from consilience.distributions.posterior import Point
from consilience.distributions.prior import Flat
from consilience.inference.layers import Layers
from consilience.key import Key
from consilience.messages import Client, Received
from consilience.methods.fisher import Layered

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_its_results() -> None:
    summary = module("oneshot/summary")

    assert summary.page(*summary.stored_trials()) in (ROOT / "docs/one-shot.md").read_text()


def test_niid_benchs_split_deals_every_row_once_and_fills_up_nobody_further() -> None:
    labels = torch.arange(600) % 10
    split = module("oneshot/published").Balanced(0.1, 0)

    dealt = split.deal(Rows(torch.zeros(600, 1), labels, None, 10), 5, Key(0))

    assert torch.cat(dealt).sort().values.equal(torch.arange(600))
    assert min(map(len, dealt)) >= 10
    assert max(map(len, dealt)) < 600 / 5 + 60  # whoever has a fifth gets no more, and a class has 60 rows


def test_niid_benchs_split_gives_clients_the_rows_that_fedlpas_release_gave_them() -> None:
    """The counts are those that the released program logged for its seed 0 on Fashion-MNIST at β = 0.1."""
    folder = os.environ.get("CONSILIENCE_DATA")
    if folder is None:
        pytest.skip("Fashion-MNIST is not here: set CONSILIENCE_DATA")
    sites = module("oneshot/published").split_of("fashion_mnist", 0.1, 10, "full", 0, folder)

    assert [len(rows.y) for rows in sites.train] == [2941, 5107, 8276, 9264, 5149, 6411, 7775, 5903, 6122, 3052]
    assert sites.train[0].y.bincount(minlength=10).tolist() == [1176, 3, 0, 1553, 0, 0, 5, 204, 0, 0]


def test_stored_trials_join_those_of_a_folder(tmp_path: Path) -> None:
    results = tmp_path / "table.json"
    results.write_text(json.dumps({"digits/iid/5": {"3": {"a": {"nll": 0.5}}}}))
    file = tmp_path / "trials/full/digits-iid-5/seed-2.json"
    write_whole(file, json.dumps({"values": {"a": {"nll": 0.123456789, "ece": None}}}).encode(), "")

    trials = collect_trials("oneshot/table", tmp_path, results)

    assert trials == {"digits/iid/5": {"2": {"a": {"nll": 0.1234568, "ece": None}}, "3": {"a": {"nll": 0.5}}}}
    assert list(trials["digits/iid/5"]) == ["2", "3"]


def test_intervals_over_seeds_are_students() -> None:
    """1, 2, 3: mean 2, deviation 1, t(2) = 4.303: ± 4.303/√3 = 2.484; less 0, 1, 1 it is 4/3 ± 1.434."""
    values = {str(i): {"nll": float(i)} for i in (1, 2, 3)}
    reference = {"1": {"nll": 0.0}, "2": {"nll": 1.0}, "3": {"nll": 1.0}}

    assert mean_with_interval(values, "nll", 0.0, ".3f") == "2.000 ± 2.484"
    assert paired_difference(values, reference, 0.0) == "+1.333 (−0.101 to +2.768)"
    assert paired_difference(values, values, 0.0) == ""


def test_a_page_is_renewed_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<a>\nold\n<b>\nbelow")

    replace_between(page, "<a>", "new", "<b>")

    assert page.read_text() == "above\n<a>\n\nnew\n\n<b>\nbelow"


@pytest.mark.parametrize("row", ["exact", "exact_tuned", "exact, as AFL"])
def test_rows_on_features_of_their_own_are_marked(row: str) -> None:
    assert module("oneshot/summary").name_of(row).endswith("*")


def test_what_is_printed_stands_beside_ours_and_is_marked() -> None:
    summary = module("oneshot/summary")
    printed = summary.printed_by_column("oneshot/fusefl", {"ensemble": "ensemble, logits"})
    ours = {"mnist/0.1": {"0": {"ensemble, logits": {"accuracy": 0.5, "nll": 1.0, "ece": 0.1}}}}

    lines = summary.printed_table(ours, printed).splitlines()

    assert "another setting" in lines[0]
    assert lines[2] == "| mnist/0.1 | ensemble, logits | 50.0% | 1.000 | 0.100 | 1 | 86.8% |"
    assert lines[3] == "| mnist/0.1 | DENSE | – | – | – |  | 66.6% |"


def test_the_releases_descent_is_its_steps_one_by_one() -> None:
    """300 steps of W ← W − 2/35 L (L W − Z), for two symmetric L = Σ B · A of full rank."""
    factors = torch.randn(2, 3, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b = factors @ factors.mT / 7
    b = b[:, :5, :5] / 3
    start, target = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = start
    for _ in range(300):
        residual = (b @ expected @ a).sum(0) - target
        expected = expected - 2 / 35 * (b @ residual @ a).sum(0)

    end = module("oneshot/fedlpa_released").descend(lambda w: (b @ w @ a).sum(0), start, target, 300)

    torch.testing.assert_close(end, expected, rtol=0, atol=1e-11)  # sums of 300 terms of size 1 in double precision


def test_the_releases_two_solutions_of_one_weight() -> None:
    """p = ¼, ¾; w = 1, 3; A = 0.1, 0.3; B = 2, 4. Averaged factors: Σ p B w A / (Σ p B · Σ p A) = 2.75 / (3.5 · 0.25) =
    22/7; the descent ends at Σ p B w A / Σ p B A = 2.75 / 0.95 = 55/19, the exact solution, as 10 000 steps suffice."""
    replies = []
    for rows, weight, a, b in ((10.0, 1.0, 0.1, 2.0), (30.0, 3.0, 0.3, 4.0)):
        size = torch.tensor(rows)
        moments = Layers({"0": rows * torch.full((1, 1), a)}, {"0": rows * torch.full((1, 1), b)}, size)
        point = Point({"0.weight": torch.full((1, 1), weight)})
        replies.append(Received(len(replies), size, Layered(point, moments)))

    merged = module("oneshot/fedlpa_released").solutions(replies, ridge=0.0)

    assert merged["averaged factors"].params["0.weight"].item() == pytest.approx(22 / 7)
    assert merged["descent"].params["0.weight"].item() == pytest.approx(55 / 19)


def test_weights_taken_after_a_pass_are_those_of_a_training_that_ends_there() -> None:
    published = module("oneshot/published")
    task = co.classification(co.models.mlp(4, 3, (5,)), prior=Flat())
    client = Client(Data.of(torch.randn(150, 4), torch.arange(150) % 3), (), Key(1))
    start = task.init(Key(0))

    taken = published.Passes(1, (1, 3))(task, start, client)
    ended = co.SGD(rate=0.01, momentum=0.9, epochs=1, batch=64, weight_decay=1e-5)(task, start, client)

    for name, weights in ended.params.items():
        assert taken.params[name].equal(weights)
