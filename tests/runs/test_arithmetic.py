"""The door to the processor's faster products: scoped, restored, refused where digits would be lost, and said."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience.errors import InputError
from consilience.runs.engines import arithmetic


def moons(matmul: str | None, out: Path | None = None, **options: object) -> co.Result:
    task, sites = tiny.classification()
    return co.run(co.methods.FedAvg(), task, sites, rounds=2, engine=co.Compute(matmul=matmul), out=out, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(arithmetic.VARIABLE, raising=False)


@pytest.mark.parametrize("user", ["highest", "high", "medium"])
def test_a_users_setting_is_as_before_after_a_run(user: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(user)
    try:
        for way in ("medium", "highest", None):
            moons(way)
            assert torch.get_float32_matmul_precision() == user
    finally:
        torch.set_float32_matmul_precision(before)


def test_blocks_in_several_threads_leave_what_was_there_before() -> None:
    first, second = threading.Event(), threading.Event()

    def run() -> None:
        with arithmetic.multiplying("medium"):
            first.set()
            second.wait(10)

    thread = threading.Thread(target=run)
    before = torch.get_float32_matmul_precision()
    thread.start()
    first.wait(10)
    with arithmetic.multiplying("highest"):
        assert torch.get_float32_matmul_precision() == "highest"
        second.set()
        thread.join()
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_the_door_opens_where_it_is_faster_and_keeps_digits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for maker, keeps, way in (
        ("AuthenticAMD", True, "medium"),
        ("AuthenticAMD", False, "highest"),
        ("GenuineIntel", True, "highest"),
        ("", True, "highest"),
    ):
        monkeypatch.setattr(arithmetic, "vendor", lambda maker=maker: maker)
        monkeypatch.setattr(arithmetic, "keeps_digits", lambda keeps=keeps: keeps)
        assert arithmetic.choose_matmul() == way
    monkeypatch.setattr(arithmetic, "vendor", lambda: "AuthenticAMD")
    small, large = (co.classification(co.models.linear(width, 10)) for width in (64, 5_000))
    assert arithmetic.choose_matmul(task=small) == "highest"  # a call of oneDNN costs more than it gains there
    assert arithmetic.choose_matmul(task=large) == "medium"
    monkeypatch.setenv(arithmetic.VARIABLE, "medium")
    assert arithmetic.choose_matmul(task=small) == "medium"
    assert arithmetic.choose_matmul("highest") == "highest"  # what is asked for comes first


def test_products_of_eight_bits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bmm = torch.bmm

    def coarse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            return bmm(x, y)
        return bmm(x.bfloat16().float(), y.bfloat16().float())

    monkeypatch.setattr(torch, "bmm", coarse)
    assert not arithmetic.keeps_digits.__wrapped__()


@pytest.mark.parametrize("asked", ["highest", "medium"])
def test_a_run_says_which_and_a_resumed_one_goes_on_with_it(asked: str, tmp_path: Path) -> None:
    if asked == "medium" and not arithmetic.keeps_digits():
        pytest.skip("this processor loses digits that way")
    whole = moons(asked, tmp_path / "run")
    assert whole.report["matmul"] == asked
    again = moons(None, tmp_path / "run", resume=True)
    assert again.report["matmul"] == asked
    assert arithmetic.resumed_matmul(None, None) == "highest"  # a run of before


def test_two_ways_agree_to_rounding_and_float64_is_the_same_to_the_bit() -> None:
    if not arithmetic.keeps_digits():
        pytest.skip("this processor loses digits that way")
    for dtype, allowed in ((torch.float32, 1e-4), (torch.float64, 0.0)):
        task, sites = tiny.classification(dtype)
        states = [
            co.run(co.methods.FedAvg(), task, sites, rounds=2, engine=co.Compute(matmul=way)).state.posterior.params
            for way in ("highest", "medium")
        ]
        for name, leaf in states[0].items():
            torch.testing.assert_close(states[1][name], leaf, rtol=allowed, atol=allowed)


def test_a_way_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no way to multiply matrices"):
        moons("fast")
    monkeypatch.setenv(arithmetic.VARIABLE, "fast")
    with pytest.raises(InputError, match="no way to multiply matrices"):
        moons(None)
