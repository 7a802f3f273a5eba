"""A masked study over Flower's messages: the same sums as by files, and no round without a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import studies
import torch
from flwr.app import Message
from rounds import replies, server_key

from consilience import tree
from consilience.agreement.agreement import Study
from consilience.errors import InputError
from consilience.flower.client import Site
from consilience.flower.server import Deployed, rounds
from consilience.flower.site import site_of
from consilience.formats.signature import read_key
from consilience.privacy.masks import Masked
from consilience.study.coordinator import pool
from consilience.study.model import read_model

EXACT: dict[str, Any] = {"method": "exact", "settings": (), "fewest_sites": 3, "smallest": 1}
FEDAVG: dict[str, Any] = {"method": "fedavg", "settings": ("inference.epochs=1",), "fewest_sites": 3, "rounds": 2}


def sites_of(study: Study, folder: Path) -> list[Site]:
    made = []
    for member in study.active:
        table = studies.table(folder / f"{member.name}.csv", studies.rows(member.number))
        key = read_key(folder / f"{member.name}.key")
        made.append(site_of(study, member, key, table, folder / f"{member.name}.site"))
    return made


def served(
    study: Study, folder: Path, out: str, spoil: Callable[[int, Message], Iterable[Message]] | None = None, **more: Any
) -> Deployed:
    grid = loopback.Loopback(sites_of(study, folder), spoil)
    return rounds(study, server_key(folder), grid, folder / out, wait=0.2, deadline=5.0, **more)


@pytest.mark.parametrize("agreed", [EXACT, FEDAVG], ids=lambda agreed: agreed["method"])
def test_masked_rounds_give_the_plain_rounds_model(tmp_path: Path, agreed: dict[str, Any]) -> None:
    results = []
    for secure in (False, True):
        folder = tmp_path / str(secure)
        folder.mkdir()
        results.append(served(studies.study(folder, secure=secure, **agreed), folder, "run"))

    plain, masked = results
    for a, b in zip(tree.leaves(plain.state), tree.leaves(masked.state), strict=True):
        torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a), rtol=1e-5, atol=1e-6)
    assert all(isinstance(reply.payload, Masked) and float(reply.size) == 0 for reply in masked.replies)
    assert masked.rows == sum(int(reply.size) for reply in plain.replies)
    assert "influence" not in masked.report
    up = masked.report["ledger"]["up_bytes"] / agreed.get("rounds", 1)
    assert up == sum(8 * (len(r.payload.values) + len(r.payload.sites)) + 32 for r in masked.replies)


def test_files_and_messages_have_the_same_sums(tmp_path: Path) -> None:
    study = studies.study(tmp_path, secure=True, **EXACT)

    by_messages = served(study, tmp_path, "run")
    pooled = pool(study, replies(study, tmp_path), server_key(tmp_path))

    (tmp_path / "model").write_bytes(pooled.model)
    by_files = read_model(tmp_path / "model", study).state
    assert torch.equal(by_messages.state.fit.mean, by_files.fit.mean)


def test_a_round_without_a_site_is_refused_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """Its masks would not vanish; asked again, every site sends what it sent before."""
    study = studies.study(tmp_path, secure=True, **EXACT)
    sent: dict[int, list[bytes]] = {}

    def lose(k: int, reply: Message) -> list[Message]:
        sent.setdefault(k, []).append(reply.content["arrays"]["tree.send.values"].data)
        return [] if k == 2 and len(sent[2]) == 1 else [reply]

    with pytest.raises(InputError, match="leave min_replies out"):
        served(study, tmp_path, "run", min_replies=3)
    with pytest.raises(InputError, match="Site west, round 1"):
        served(study, tmp_path, "run", lose)
    result = served(study, tmp_path, "run", lose, resume=True)

    assert {len(set(copies)) for copies in sent.values()} == {1} and len(sent[2]) == 2
    assert result.rows > 100


def test_a_changed_number_is_noticed_in_the_sum(tmp_path: Path) -> None:
    """The gate cannot see it, the sum can: it does not count as many sites."""
    study = studies.study(tmp_path, secure=True, **EXACT)
    sites = sites_of(study, tmp_path)
    mask = sites[0].mask
    assert mask is not None

    def lie(reply: Any, round: int, question: str) -> Any:
        honest = mask(reply, round, question)
        return honest._replace(send=honest.send._replace(values=honest.send.values + 1))

    object.__setattr__(sites[0], "mask", lie)
    with pytest.raises(InputError, match="masks do not cancel"):
        rounds(study, server_key(tmp_path), loopback.Loopback(sites), tmp_path / "run", wait=0.2, deadline=5.0)
