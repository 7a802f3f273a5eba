"""Token ids are a kind of input: they stay whole numbers from the rows to the prediction; and layers meet engines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.errors import InputError
from consilience.inference import SGD
from consilience.key import Key
from consilience.methods import method as method_from_name
from consilience.metrics.baselines import lines_to_beat
from consilience.runs.engines.soundness import draw_probes
from consilience.runs.module import Predictor

IDS = 7  # the last one in the rows: a probe beyond it, or below 0, would end the run
QUICK = SGD(epochs=2)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look_up = nn.Embedding(IDS, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.look_up(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(1, 3, batch_first=True)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.read(x.unsqueeze(-1))[0][:, -1])


def dataset(sites: int = 3, tokens: bool = True) -> co.Dataset:
    x = np.random.default_rng(0).integers(0, IDS, (12 * sites, 5))
    return co.from_arrays(x, (x.mean(1) > 3).astype(int), np.arange(len(x)) % sites, tokens=tokens)


def sites() -> Sites:
    return dataset().split(co.splits.natural(), calibration=4, inputs=4, seed=0)


def test_token_ids_stay_whole_numbers_in_every_role() -> None:
    rows = sites()

    assert rows.calibration is not None
    assert rows.inputs is not None
    parts = [*rows.train, *rows.test, rows.calibration]
    assert {part.x.dtype for part in parts} == {rows.inputs.dtype} == {torch.int64}
    assert {part.w.dtype for part in parts} == {torch.float32}
    assert Data.of(rows.inputs, torch.zeros(4)).w.dtype == torch.float32


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "parallel:1"])
@pytest.mark.parametrize("method", [co.methods.FedAvg(QUICK), co.methods.BCM()], ids=["fedavg", "bcm"])
def test_a_network_of_words_learns_and_predicts(method: co.Method, engine: str) -> None:
    rows = sites()

    result = co.run(method, co.classification(Words()), rows, rounds=1, engine=engine)

    # What the report scored is what is predicted for the same rows.
    probs = result.predict(rows.all_test.x).probs  # type: ignore[union-attr]
    nll = -probs[torch.arange(len(probs)), rows.all_test.y].double().log().mean()
    assert result.metrics["nll"] == pytest.approx(float(nll), abs=1e-6)
    assert set(result.influence) == set(rows.names)
    assert torch.allclose(Predictor(result)(rows.all_test.x), probs, atol=1e-6)
    assert "pooled_linear" not in lines_to_beat(rows)  # of token ids, which are no amounts


def test_probes_are_rows_as_they_are() -> None:
    rows = sites().train[0].x

    probes = draw_probes(Key(0), rows)

    assert len(probes) == 7  # as many as the site has
    assert {tuple(probe) for probe in probes.tolist()} <= {tuple(row) for row in rows.tolist()}
    assert not torch.equal(probes, draw_probes(Key(1), rows))


def test_what_token_ids_cannot_be_is_said_in_a_sentence() -> None:
    with pytest.raises(InputError, match="tokens=True"):
        co.run(
            co.methods.FedAvg(QUICK),
            co.classification(Words()),
            dataset(tokens=False).split(co.splits.natural(), calibration=0),
            rounds=1,
        )
    with pytest.raises(InputError, match="whole numbers from 0, and one is -1"):
        co.from_arrays([[-1], [0]], [0, 1], tokens=True)
    with pytest.raises(InputError, match="x must hold whole numbers where tokens=True"):
        co.from_arrays([[0.5], [0]], [0, 1], tokens=True)
    with pytest.raises(InputError, match="leave standardise and shifts out"):
        dataset().split(co.splits.natural(), standardise=True)
    with pytest.raises(InputError, match="leave standardise and shifts out"):
        dataset().split(co.splits.parse("iid+noise:0.5"), 3)
    with pytest.raises(InputError, match="cannot be drawn or moved"):
        co.run(method_from_name("fedov"), co.classification(Words()), sites())


def test_many_recurrent_sites_run_one_after_another_and_the_report_says_why() -> None:
    rows = dataset(10, tokens=False).split(co.splits.natural(), calibration=0, seed=0)
    task = co.classification(Recurrent())

    result = co.run(co.methods.EvidencePooling(QUICK), task, rows)
    named = co.run(co.methods.EvidencePooling(QUICK), task, rows, engine="sequential")

    assert result.report["engine"] == "sequential"
    said = [sentence for sentence in result.report["warnings"] if "one after another" in sentence]
    assert len(said) == 1
    assert "aten::lstm" in said[0]
    assert result.metrics == named.metrics  # two names for one setting
    assert (
        co.run(co.methods.FedAvg(QUICK), co.classification(Words()), sites_of_ten(), rounds=1).report["engine"]
        == "vectorised"
    )


def sites_of_ten() -> Sites:
    return dataset(10).split(co.splits.natural(), calibration=0, seed=0)


@pytest.mark.parametrize(("engine", "remedy"), [("vectorised", "use engine='sequential'"), ("auto", "weights alone")])
def test_what_torch_cannot_batch_is_refused_in_a_sentence(engine: str, remedy: str) -> None:
    rows = dataset(10, tokens=False).split(co.splits.natural(), calibration=0, seed=0)

    with pytest.raises(InputError, match=f"needs what torch cannot do for this network .*lstm.*: .*{remedy}"):
        co.run(
            co.methods.GaussianProduct(co.inference.Laplace(QUICK)), co.classification(Recurrent()), rows, engine=engine
        )
