"""A model by itself predicts as its run does, here and in other programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience.method import is_personal
from consilience.methods import METHODS
from consilience.runs.module import Predictor, export_module, exported

LINEAR = ("exact", "exact_tuned", "glm", "hierarchical")
QUICK = ("fedavg", "beta", "gaussian_product")  # one network, several, and draws of a Gaussian
DEAR = ("mixture", "evidence", "exact")
TRACED = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in DEAR)]
POOLED = sorted(name for name, kind in METHODS.items() if not is_personal(kind()))


def result(name: str) -> co.Result:
    task, sites = tiny.classification()
    if name in LINEAR:
        task = co.classification(co.models.linear(sites.features, sites.classes))
    return co.run(tiny.method(name), task, sites.standardised(), rounds=1, engine="sequential", scored=False)


@pytest.mark.parametrize("name", POOLED)
def test_every_model_stands_by_itself(name: str) -> None:
    made = result(name)
    x = torch.randn(6, 2, dtype=torch.float64)

    module = made.to_module()

    expected = made.predict(x).probs
    assert isinstance(module, torch.nn.Module) and expected is not None
    assert torch.allclose(module(x), expected, atol=1e-5)


@pytest.mark.parametrize("name", TRACED)
def test_an_exported_model_predicts_any_number_of_rows(name: str) -> None:
    made = result(name)
    x = torch.randn(9, 2, dtype=torch.float64)

    program = exported(Predictor(made), x[:3])

    expected = made.predict(x).probs
    assert expected is not None
    for rows in (x, x[:1]):
        assert torch.allclose(program.module()(rows), expected[: len(rows)], atol=1e-5)


def test_numbers_come_in_their_units() -> None:
    task, sites = tiny.regression()
    made = co.run(tiny.method("mixture"), task, sites.standardised(), engine="sequential", scored=False)
    x = torch.randn(5, sites.train[0].x.shape[1], dtype=torch.float64)

    mean, var = made.to_module()(x).unbind(-1)

    p = made.predict(x)
    assert p.mean is not None and p.var is not None
    assert torch.allclose(mean, p.mean, rtol=1e-5, atol=1e-5) and torch.allclose(var, p.var, rtol=1e-5, atol=1e-5)


def test_a_method_with_a_model_for_each_site_has_none_to_take() -> None:
    with pytest.raises(co.InputError, match="a model for each site"):
        result("local_only").to_module()


def test_a_model_is_written_for_torch(tmp_path: Path, invoke: Invoke) -> None:
    made = result("fedavg")
    made.save(tmp_path / "r")
    x = torch.randn(4, 2, dtype=torch.float64)

    code, _, err = invoke("export", "r", "--to", "pt2")

    assert code == 0, err
    expected = made.predict(x).probs
    assert expected is not None
    assert torch.allclose(torch.export.load(tmp_path / "r" / "model.pt2").module()(x), expected, atol=1e-5)
    for words, sentence in (
        (("--to", "tflite"), "no format called"),
        (("--to", "pt2", "-o", "m.onnx"), "not end with"),
    ):
        code, _, err = invoke("export", "r", *words)
        assert code == 2 and sentence in err
    with pytest.raises(co.InputError, match="names no format"):
        export_module(made, tmp_path / "model.bin")


def test_a_model_is_written_for_onnx_by_command(tmp_path: Path, invoke: Invoke) -> None:
    pytest.importorskip("onnxscript", reason="needs pip install 'consilience[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="needs pip install onnxruntime")
    made = result("fedavg")
    made.save(tmp_path / "r")
    x = torch.randn(4, 2, dtype=torch.float64)

    code, shown, err = invoke("export", "r", "--to", "onnx")

    assert code == 0 and "Model: r/model.onnx" in shown and err == ""
    session = runtime.InferenceSession(str(tmp_path / "r" / "model.onnx"))
    (found,) = session.run(["prediction"], {"rows": x.numpy()})
    expected = made.predict(x).probs
    assert expected is not None and torch.allclose(torch.from_numpy(found), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["mixture", "evidence", "exact"])
def test_onnx_predicts_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs pip install 'consilience[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="needs pip install onnxruntime")
    made = result(name)
    x = torch.randn(9, 2, dtype=torch.float64)

    path = export_module(made, tmp_path / "model.onnx")

    session = runtime.InferenceSession(str(path))
    expected = made.predict(x).probs
    assert expected is not None
    for rows in (x, x[:1]):
        (found,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
        assert torch.allclose(torch.from_numpy(found), expected[: len(rows)], atol=1e-5)
