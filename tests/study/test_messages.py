"""By files, a reply is bound to the message it answers, a round is answered once, and messages are checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from rounds import replies, rows, server_key
from uncharged import Fitted, fit

import consilience as co
from consilience.distributions.posterior import Point
from consilience.errors import InputError
from consilience.glm.sums import square_matrix
from consilience.messages import Client, Reply
from consilience.methods import METHODS
from consilience.serialisation.codec import types_of
from consilience.study.coordinator import PooledFiles, pool
from consilience.study.files import message_file
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.reply import first_message
from consilience.study.rows import Parts, parts, rows_of

SETTINGS: dict[str, Any] = {"method": "fedavg", "settings": ("inference.epochs=1",), "rounds": 2}


def begun(folder: Path, **settings: Any) -> tuple[Study, PooledFiles, Path, Path]:
    """A study after its first round, with the second message that is true, and another with the same signature."""
    study = studies.study(folder, **(settings or SETTINGS))
    files = replies(study, folder)
    first = pool(study, files, server_key(folder))
    second = pool(study, files[:2], server_key(folder))
    paths = []
    for name, pooled in (("one", first), ("other", second)):
        paths.append(folder / f"{name}.message")
        paths[-1].write_bytes(pooled.message or b"")
    (folder / "one.state").write_bytes(first.state or b"")
    return study, first, paths[0], paths[1]


def fit_north(study: Study, folder: Path, message: Path | None, own: Parts | None = None) -> Fitted:
    """One site's answer, and its memory on disk."""
    memory = folder / "north.memory"
    key = read_key(folder / "north.key")
    fitted = fit(study, study.member("north"), key, own or rows(study, folder)["north"], message, memory)
    memory.write_bytes(fitted.memory)
    return fitted


def test_weights_that_would_let_derivatives_show_one_patient_are_answered_by_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p (1 − p) is 0 in all rows but those at the boundary, which the coordinator lays through a patient."""
    study, _, path, _ = begun(tmp_path, method="glm", settings=(), rounds=8)
    own = rows(study, tmp_path)["north"]
    x = fit_north(study, tmp_path, None, own).training.data.x.double()
    true = open_envelope(path).value(types_of(study.agreement.build_method()))
    direction = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(3)).double()
    slope = 1000 * direction / direction.norm()
    weight, bias = torch.stack([0 * slope, slope]), torch.tensor([0.0, -float(x[7] @ slope)])
    chosen = {name: bias if leaf.ndim == 1 else weight for name, leaf in true.params.items()}
    lying = Point({name: leaf.to(true.params[name]) for name, leaf in chosen.items()})
    path.write_bytes(message_file(study.agreement, lying, 2, server_key(tmp_path)))

    with pytest.raises(InputError, match="is not answered: fewer than 10 rows would count"):
        fit_north(study, tmp_path, path, own)
    monkeypatch.setattr("consilience.study.reply.check_asked", lambda *_: None)  # as it was before
    with pytest.raises(InputError, match=r"stays here: 'loss' holds .*, and nothing above 87.3 can come of 42 rows"):
        fit_north(study, tmp_path, path, own)
    monkeypatch.setattr("consilience.study.reply.may_leave", lambda *_: None)  # as it was before
    sent = fit_north(study, tmp_path, path, own).send
    line = square_matrix(sent.curvature, 2 * x.shape[1] + 2)[0, : x.shape[1] + 1]  # of the first class's constant
    assert float((line[1:] / line[0] - x[7]).norm() / x[7].norm()) < 1e-3


def test_a_reply_to_another_message_is_left_out(tmp_path: Path) -> None:
    study, _, one, other = begun(tmp_path)
    key, own = read_key(tmp_path / "north.key"), rows(study, tmp_path)["north"]
    stray = fit(study, study.member("north"), key, own, other, tmp_path / "north.memory").reply
    files = replies(study, tmp_path, one)
    good = open_envelope(files[0])
    files[0].write_bytes(stray)

    pooled = pool(study, files, server_key(tmp_path), after=tmp_path / "one.state")

    assert open_envelope(files[0]).header.about["message"] != good.header.about["message"]
    assert pooled.refused == (
        f"{files[0]} is not used: it answers another message than the coordinator's of round 2: let it answer that.",
    )
    assert pooled.facts.sites == studies.NAMES  # by their first replies
    with pytest.raises(InputError, match="No reply can be used"):
        pool(study, files[:1], server_key(tmp_path), after=tmp_path / "one.state")


def test_first_replies_name_the_agreement(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **SETTINGS)

    said = open_envelope(replies(study, tmp_path)[0]).header.about

    assert said.keys() == {"message", "number", "merged", "events"}
    assert said["message"] == study.agreement.hash and said["number"] == 0
    assert open_envelope(tmp_path / "north.memory").header.about["answered"] == {"1": study.agreement.hash}


def test_a_site_answers_a_round_once_or_the_same_message_again(tmp_path: Path) -> None:
    study, _, one, other = begun(tmp_path)

    first, again = (fit_north(study, tmp_path, one) for _ in range(2))
    before = (tmp_path / "north.memory").read_bytes()
    with pytest.raises(InputError, match=r"has answered round 2 to another message.*or move .*north\.memory away"):
        fit_north(study, tmp_path, other)

    assert first.reply == again.reply and (tmp_path / "north.memory").read_bytes() == before
    fit_north(study, tmp_path, None)  # the first reply is lost: made again, and nothing is forgotten
    with pytest.raises(InputError, match="has answered round 2 to another message"):
        fit_north(study, tmp_path, other)
    assert fit_north(study, tmp_path, one).reply == first.reply


def test_a_site_does_not_answer_again_from_other_rows(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **SETTINGS)
    fit_north(study, tmp_path, None)
    fewer = studies.table(tmp_path / "fewer.csv", studies.rows(0)[1:])
    own = parts(study.agreement, 0, rows_of(study.agreement, fewer)[0])

    with pytest.raises(InputError, match="two replies show where they differ"):
        fit_north(study, tmp_path, None, own)
    (tmp_path / "north.memory").unlink()  # a decision of the site's people
    fit_north(study, tmp_path, None, own)


def test_another_studys_memory_is_no_answer_to_this_one(tmp_path: Path) -> None:
    fit_north(studies.study(tmp_path, **SETTINGS, seed=1), tmp_path, None)

    fit_north(studies.study(tmp_path, **SETTINGS), tmp_path, None)


def changed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Point], Any]:
    return lambda point: Point(change(dict(point.params)))


BAD: dict[str, tuple[Callable[[Point], Any], int, str]] = {
    "not finite": (changed(lambda p: {k: v * torch.nan for k, v in p.items()}), 2, "not finite"),
    "another shape": (changed(lambda p: {k: v[:1] for k, v in p.items()}), 2, "has the shape"),
    "more": (changed(lambda p: {**p, "more": torch.zeros(1)}), 2, "'params.more' is not expected"),
    "another kind": (lambda point: point.params, 2, "its names are wrong"),
    "nothing": (lambda point: (), 2, "is missing"),
    "weights of 3000": (changed(lambda p: {k: 0 * v + 3000 for k, v in p.items()}), 2, "it has a weight of 3e+03"),
    "a chosen first start": (changed(lambda p: {k: v + 0.1 for k, v in p.items()}), 1, "not what this study begins"),
    "no round": (lambda point: point, 0, "for round 0 and the study has 2"),
    "a round too many": (lambda point: point, 3, "for round 3 and the study has 2"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_site_starts_from_no_message_that_the_method_does_not_send(what: str, tmp_path: Path) -> None:
    change, round_, sentence = BAD[what]
    study, _, one, _ = begun(tmp_path)
    true = open_envelope(one).value({"Point": Point})
    before = (tmp_path / "north.memory").read_bytes()
    path = tmp_path / "bad.message"
    path.write_bytes(message_file(study.agreement, change(true), round_, server_key(tmp_path)))

    with pytest.raises(InputError) as error:
        fit_north(study, tmp_path, path)

    assert sentence in str(error.value) and (tmp_path / "north.memory").read_bytes() == before
    fit_north(study, tmp_path, one)


def test_a_first_message_that_is_the_studys_own_is_used(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **SETTINGS)
    path = tmp_path / "first.message"
    path.write_bytes(message_file(study.agreement, first_message(study), 1, server_key(tmp_path)))

    assert fit_north(study, tmp_path, path).reply == fit_north(study, tmp_path, None).reply


def test_a_control_variate_cannot_push_weights_out_of_bounds(tmp_path: Path) -> None:
    study, _, one, _ = begun(tmp_path, method="scaffold", settings=("inference.epochs=1",), rounds=2)
    true = open_envelope(one).value(types_of(study.agreement.build_method()))
    pushed = true._replace(control={k: v + 1e6 for k, v in true.control.items()})
    one.write_bytes(message_file(study.agreement, pushed, 2, server_key(tmp_path)))

    with pytest.raises(InputError, match="The reply stays here: it has a weight of"):
        fit_north(study, tmp_path, one)


class Copies(co.methods.FedAvg):
    """A method whose sites send a column of their rows, in another order and scaled, in the place of a weight."""

    def local(self, task: co.Task, message: Any, client: Client) -> Reply:
        return Reply(Point({"0.weight": 2 - client.data.x[:, 0].flip(0).half()}), client.data.size)


def test_a_method_that_sends_rows_in_disguise_is_stopped_at_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.study(tmp_path, **SETTINGS)
    monkeypatch.setitem(METHODS, "fedavg", Copies)

    with pytest.raises(InputError, match="The reply stays here: it holds rows of this site, which never leave it"):
        fit_north(study, tmp_path, None)
    assert not (tmp_path / "north.memory").exists()
