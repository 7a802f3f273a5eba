"""A study under masks: the plain study's model, and nothing of a single site; drop-outs, late files, kills."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from places import COLUMNS, Place
from rounds import pooled_model, replies, rows, server_key, statistics_of
from scipy import stats
from tiny import Invoke
from uncharged import fit, statistics

from consilience import tree
from consilience.disk import writing
from consilience.errors import InputError
from consilience.privacy.dp.accountant import epsilon_of
from consilience.privacy.secure_aggregation.masks import Masked
from consilience.serialisation.codec import TYPES
from consilience.study.coordinator import PooledFiles, choose, pool, start
from consilience.study.masking import MESSAGE, REPLY, MaskBook, book_path
from consilience.study.masking import statistics_of as statistics_about
from consilience.study.model import Model, model_file, read_model
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import Study, read
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text
from consilience.study.summing import drop_sites

FOUR = ("north", "south", "west", "east")
SUMS: dict[str, Any] = {"method": "exact", "settings": (), "fewest_sites": 3, "smallest": 1}
SHORT = ("inference.epochs=2",)
CASES = {  # method → settings, rounds, network
    "fedavg": (SHORT, 2, "mlp"),
    "scaffold": (SHORT, 2, "linear"),
    "gaussian_product": (("inference.dense=True",), 1, "linear"),
    "glm": ((), 3, "linear"),
}


def masked_study(folder: Path, names: tuple[str, ...] = studies.NAMES, **changes: Any) -> Study:
    return studies.study(folder, names, **{**SUMS, "secure": True, **changes})


def played(study: Study, folder: Path) -> tuple[Any, PooledFiles]:
    """The model after all rounds, by files."""
    message = after = None
    for _ in range(study.agreement.rounds):
        pooled = pool(study, replies(study, folder, message), server_key(folder), after=after)
        if pooled.message and pooled.state:
            message, after = folder / "message", folder / "state"
            message.write_bytes(pooled.message)
            after.write_bytes(pooled.state)
    (folder / "model").write_bytes(pooled.model)
    return read_model(folder / "model", study).state, pooled


@pytest.mark.parametrize("method", CASES)
def test_a_masked_study_gives_the_plain_studys_model(tmp_path: Path, method: str) -> None:
    """To 1e-5 of the largest number: single precision, in which networks train, and steps far below it."""
    settings, rounds, net = CASES[method]
    words: dict[str, Any] = {"method": method, "settings": settings, "rounds": rounds, "model": net}
    states = []
    for secure in (False, True):
        folder = tmp_path / str(secure)
        folder.mkdir()
        study = masked_study(folder, **words, secure=secure)
        state, pooled = played(study, folder)
        states.append([torch.as_tensor(leaf).double() for leaf in tree.leaves(state)])
    assert len(states[0]) == len(states[1])
    for plain, masked in zip(*states, strict=True):
        limit = 1e-5 * max(1.0, float(plain.abs().max()) if plain.numel() else 0.0)
        torch.testing.assert_close(masked, plain, rtol=0.0, atol=limit)
    assert pooled.facts.rows == sum(len(own.train.y) for own in rows(study, folder).values())
    assert {site["train"] for site in pooled.account["per_site"]} == {None}  # nobody's own number of rows
    assert any("summed under masks" in note for note in pooled.facts.notes)


def test_noise_is_added_once_under_masks(tmp_path: Path) -> None:
    """Each of three sites adds a third of the variance, the coordinator reads the total alone, and it predicts."""
    promise = {"epsilon": 8.0, "delta": 1e-4, "noise_added": "once", "honest_sites": 3}

    study = masked_study(tmp_path, **promise, rows_per_parameter=0.0)
    _, pooled = played(study, tmp_path)

    assert any("summed under masks" in note for note in pooled.facts.notes)
    assert pooled.account["privacy"]["epsilon"] == 8.0
    assert pooled.account["privacy"]["noise"] == "once" and not pooled.account["privacy"]["simulated"]
    x = torch.zeros(2, len(study.agreement.feature_names))
    assert bool(torch.isfinite(read_model(tmp_path / "model", study)(x)[0]).all())


def test_what_leaves_is_uniform_and_says_nothing_else(tmp_path: Path) -> None:
    study = masked_study(tmp_path, method="fedavg", settings=SHORT, model="mlp")

    envelope = open_envelope(replies(study, tmp_path)[0])

    value = envelope.value(TYPES)
    assert isinstance(value["send"], Masked) and float(value["size"]) == 0
    counts = torch.bincount(value["send"].values.view(torch.uint8).long(), minlength=256)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-6  # keys are drawn anew in every run
    assert value["send"].values.numel() > 500
    assert set(envelope.header.about) == {"number", "message"}


def test_statistics_are_summed_under_masks_too(tmp_path: Path) -> None:
    chosen = []
    for secure in (False, True):
        folder = tmp_path / str(secure)
        folder.mkdir()
        study = masked_study(folder, secure=secure, choose=0.3)
        model = pooled_model(study, folder, replies(study, folder))
        files = statistics_of(study, folder, model)
        chosen.append(choose(study, read_model(model, study), files, server_key(folder)))

    plain, masked = chosen
    assert masked.facts.temperature == plain.facts.temperature
    assert masked.facts.statistics_from == studies.NAMES
    assert masked.account["metrics"]["nll"] == pytest.approx(plain.account["metrics"]["nll"], abs=1e-6)
    assert not any("test" in site for site in masked.account["per_site"])
    assert set(open_envelope(files[0]).tensors) == {f"tree.masked.{name}" for name in ("values", "sites", "roster")}


def test_statistics_go_on_without_a_site_too(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR, choose=0.3)
    path = pooled_model(study, tmp_path, replies(study, tmp_path))
    model = read_model(path, study)
    files = statistics_of(study, tmp_path, path)
    with pytest.raises(InputError, match="Nothing of east is here"):
        choose(study, model, files[:3], server_key(tmp_path))

    after, request = drop_sites(study, ["east"], server_key(tmp_path), 1, statistics_about(model.checksum))
    (tmp_path / "sepsis.drop").write_bytes(request)
    unmasked = told(study, tmp_path, tmp_path / "sepsis.drop", FOUR[:3])
    chosen = choose(after, model, [*files, *unmasked], server_key(tmp_path))

    assert chosen.facts.statistics_from == FOUR[:3]
    assert any("east" in sentence and "gone on without it" in sentence for sentence in chosen.refused)


def test_scores_on_agreed_inputs_are_summed_as_equations(tmp_path: Path) -> None:
    """Evidence pooling: A = Σ Aₖ and b = Σ bₖ have the same solution as the sites' scores one by one."""
    settings = ("inference.epochs=2", "distil.inference.epochs=2")
    words = {"method": "evidence_logits", "settings": settings, "model": "mlp", "hand_out": "student"}
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    states = []
    for secure in (False, True):
        folder = tmp_path / str(secure)
        folder.mkdir()
        study = masked_study(folder, **words, secure=secure)
        (folder / "message").write_bytes(start(study, server_key(folder), inputs))
        files = replies(study, folder, folder / "message")
        states.append(_numbers(folder, pool(study, files, server_key(folder), inputs)))
    for plain, masked in zip(*states, strict=True):
        torch.testing.assert_close(masked, plain, rtol=1e-4, atol=1e-5)


def test_a_missing_site_is_named_and_nothing_is_summed(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR)
    files = replies(study, tmp_path)

    with pytest.raises(InputError, match=r"Nothing of east is here.*study drop STUDY east"):
        pool(study, files[:3], server_key(tmp_path))


def book(study: Study, folder: Path, name: str) -> MaskBook:
    member = study.member(name)
    return MaskBook(book_path(study, member, folder), study, member, read_key(folder / f"{name}.key"))


def told(study: Study, folder: Path, request: Path, names: tuple[str, ...]) -> list[Path]:
    made = []
    for name in names:
        made.append(folder / f"{name}.unmask")
        made[-1].write_bytes(book(study, folder, name).tell(request))
    return made


def dropped(study: Study, folder: Path, *names: str) -> tuple[Study, Path]:
    study, request = drop_sites(study, names, server_key(folder), 1)
    (folder / "sepsis.drop").write_bytes(request)
    return study, folder / "sepsis.drop"


def test_a_sum_goes_on_without_a_site_and_its_late_reply_is_refused(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR)
    files = replies(study, tmp_path)
    after, request = dropped(study, tmp_path, "east")

    unmasked = told(study, tmp_path, request, FOUR[:3])
    pooled = pool(after, [*files[:3], *unmasked], server_key(tmp_path))
    late = pool(after, [*files, *unmasked], server_key(tmp_path))
    with pytest.raises(InputError, match="has not revealed its masks with east"):
        pool(after, [*files[:3], *unmasked[:2]], server_key(tmp_path))

    plain = studies.study(tmp_path, FOUR[:3], **SUMS)
    expected = pool(plain, replies(plain, tmp_path), server_key(tmp_path))
    for each, other in zip(*(_numbers(tmp_path, p) for p in (pooled, expected)), strict=True):
        torch.testing.assert_close(each, other, rtol=1e-5, atol=1e-5)
    assert pooled.facts.sites == tuple(sorted(FOUR[:3])) == late.facts.sites
    assert any("east" in sentence and "gone on without it" in sentence for sentence in late.refused)
    (tmp_path / "study.toml").write_text(study_text(after))
    assert read(tmp_path / "study.toml").drops == after.drops
    with pytest.raises(InputError, match="went on without this site"):
        _fit(after, tmp_path, "east")


def _numbers(folder: Path, pooled: PooledFiles) -> list[torch.Tensor]:
    (folder / "some.model").write_bytes(pooled.model)
    return [leaf.double() for _, leaf in sorted(open_envelope(folder / "some.model").tensors.items())]


def _fit(study: Study, folder: Path, name: str, records: Any = None) -> bytes:
    own = rows(study, folder)[name]
    if records is not None:
        own = records
    key = read_key(folder / f"{name}.key")
    return fit(study, study.member(name), key, own, None, folder / f"{name}.other").reply


def test_a_site_keeps_its_masks_where_too_little_noise_would_be_left(tmp_path: Path) -> None:
    """Shares of four, of which three are left, are μ √(4/3): ε = 1 would be 1.18."""
    promise = {"epsilon": 1.0, "delta": 1e-4, "noise_added": "once", "honest_sites": 4}
    study = masked_study(tmp_path, FOUR, **promise)
    replies(study, tmp_path)
    header = Header("drop", study.agreement.hash, study.agreement.name, "server", 1, {"what": "reply", "sites": [3]})
    (tmp_path / "sepsis.drop").write_bytes(seal({"sites": torch.tensor([3])}, header, server_key(tmp_path)))

    assert study.agreement.privacy is not None
    assert epsilon_of(1e-4, study.agreement.privacy.mu * math.sqrt(4 / 3)) == pytest.approx(1.18, abs=0.005)
    with pytest.raises(
        InputError, match="stay here: 3 sites would be left, and the shares of noise that make up ε = 1"
    ):
        book(study, tmp_path, "north").tell(tmp_path / "sepsis.drop")
    with pytest.raises(InputError, match="3 sites would be left, and the shares"):
        dropped(study, tmp_path, "east")


def test_a_second_sum_with_one_site_less_is_refused(tmp_path: Path) -> None:
    """The attack: the coordinator signs the model again, one blank more in a note, and asks all sites but one."""
    study = masked_study(tmp_path, FOUR, choose=0.3)
    model = read_model(pooled_model(study, tmp_path, replies(study, tmp_path)), study)
    fewer = study.without("east")
    again = dataclasses.replace(model, facts=model.facts._replace(notes=(*model.facts.notes, " ")))
    (tmp_path / "again.model").write_bytes(model_file(again, server_key(tmp_path)))
    again = read_model(tmp_path / "again.model", study)
    own = rows(study, tmp_path)["north"].choose
    key, kept = read_key(tmp_path / "north.key"), book_path(study, study.member("north"), tmp_path)

    def asked(study: Study, model: Model) -> bytes:
        member = study.member("north")
        return statistics(study, member, key, own, model.method, model.state, model.checksum, kept)

    first = asked(study, model)
    assert again.checksum != model.checksum and asked(study, model) == first
    with pytest.raises(InputError, match="for other sites"):
        asked(fewer, model)
    for other in (study, fewer):
        with pytest.raises(InputError, match="masked statistics about another model"):
            asked(other, again)


def test_a_round_is_masked_for_one_list_of_sites_by_files_and_over_flower(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR)
    values = torch.arange(5)
    first = book(study, tmp_path, "north").mask(1, REPLY, "rows", values)

    assert torch.equal(book(study, tmp_path, "north").mask(1, REPLY, "rows", values).values, first.values)
    book(study, tmp_path, "west").mask(1, REPLY, "rows", values)
    book(study, tmp_path, "north").mask(1, MESSAGE, "rows", values)  # for the same sites: the sum is the same
    with pytest.raises(InputError, match="for round 1, for other sites"):
        book(study.without("east"), tmp_path, "west").mask(1, MESSAGE, "rows", values)
    book(study.without("east"), tmp_path, "north").mask(2, REPLY, "rows", values)  # the next round asks something else


def test_a_site_tells_for_one_drop_out_and_never_below_the_fewest(tmp_path: Path) -> None:
    five = (*FOUR, "mid")
    study = masked_study(tmp_path, five)
    replies(study, tmp_path)
    after, one = dropped(study, tmp_path, "east")
    first = told(study, tmp_path, one, ("north",))[0].read_bytes()

    assert told(study, tmp_path, one, ("north",))[0].read_bytes() == first  # again, should it be lost
    with pytest.raises(InputError, match="goes on without east: leaving others out as well"):
        dropped(after, tmp_path, "mid")
    _, other = dropped(study, tmp_path, "east", "mid")  # a coordinator that forgets what it asked for
    with pytest.raises(InputError, match="others were revealed for this sum"):
        book(study, tmp_path, "north").tell(other)
    with pytest.raises(InputError, match="2 sites would be left"):
        dropped(study, tmp_path, "east", "mid", "west")
    forged = open_envelope(other).header._replace(about={"what": "reply", "sites": [2, 3, 4]})
    (tmp_path / "three.drop").write_bytes(seal({"sites": torch.tensor([2])}, forged, server_key(tmp_path)))
    with pytest.raises(InputError, match=r"masks shared .* stay here: 2 sites would be left"):
        book(study, tmp_path, "south").tell(tmp_path / "three.drop")


def test_who_is_in_a_model_is_not_missing(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR).recorded("some model", FOUR)

    with pytest.raises(InputError, match="has been pooled, so it has answered"):
        dropped(study, tmp_path, "east")


def test_a_sum_without_a_site_that_left_needs_a_new_study(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR)
    files = replies(study, tmp_path)

    with pytest.raises(InputError, match=r"masked for east too, who left"):
        pool(study.without("east"), files, server_key(tmp_path))


def test_only_the_coordinator_asks_and_only_who_answered_tells(tmp_path: Path) -> None:
    study = masked_study(tmp_path, FOUR)
    _, request = dropped(study, tmp_path, "east")

    with pytest.raises(InputError, match="has not sent its own part"):
        book(study, tmp_path, "north").tell(request)
    header = open_envelope(request).header
    for sender in ("server", "south"):
        forged = seal({"sites": torch.tensor([3])}, header._replace(sender=sender), read_key(tmp_path / "south.key"))
        (tmp_path / "forged.drop").write_bytes(forged)
        with pytest.raises(InputError, match="is not used"):
            book(study, tmp_path, "north").tell(tmp_path / "forged.drop")


def test_a_site_that_is_called_missing_hears_of_it(tmp_path: Path) -> None:
    """If it has answered, somebody lies or lost its file; if not, it sends nothing any more."""
    study = masked_study(tmp_path, FOUR)
    _, request = dropped(study, tmp_path, "east")

    with pytest.raises(InputError, match="will send nothing for it"):
        book(study, tmp_path, "east").tell(request)
    with pytest.raises(InputError, match="went on without this site"):
        _fit(study, tmp_path, "east")
    _fit(study, tmp_path, "west")
    _, request = dropped(study, tmp_path, "west")
    with pytest.raises(InputError, match="warn the other sites"):
        book(study, tmp_path, "west").tell(request)


def test_a_round_is_masked_once(tmp_path: Path) -> None:
    """Also where the memory was moved away: the same masks under two answers would show how they differ."""
    study = masked_study(tmp_path)
    first = _fit(study, tmp_path, "north")
    other = rows(study, tmp_path)["south"]

    assert _fit(study, tmp_path, "north") == first
    with pytest.raises(InputError, match="has masked another answer"):
        _fit(study, tmp_path, "north", other)
    longer = studies.study(tmp_path, FOUR, **SUMS, secure=True)
    with pytest.raises(InputError, match="or one for other sites"):
        _fit(longer, tmp_path, "north")


def test_files_masked_for_other_sites_are_not_mixed(tmp_path: Path) -> None:
    study = masked_study(tmp_path)
    files = replies(study, tmp_path)
    longer = studies.study(tmp_path, FOUR, **SUMS, secure=True)
    (tmp_path / "east.reply").write_bytes(_fit(longer, tmp_path, "east"))

    pooled = pool(longer, [*files, tmp_path / "east.reply"], server_key(tmp_path))

    assert pooled.facts.sites == tuple(sorted(studies.NAMES))
    assert any("east" in sentence and "masked for other sites" in sentence for sentence in pooled.refused)


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another number": (lambda v: v._replace(values=v.values + (torch.arange(len(v.values)) == 0)), "do not cancel"),
    "too short": (lambda v: v._replace(values=v.values[1:]), "has the shape"),
    "another type": (lambda v: v._replace(values=v.values.double()), "has the shape"),
    "other sites": (lambda v: v._replace(sites=torch.tensor([0, 1, 2, 3])), "Nothing of west|does not list"),
    "another roster": (lambda v: v._replace(roster=1 + v.roster), "Nothing of west"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_a_masked_reply_can_be_checked_for_is_checked(tmp_path: Path, lie: str) -> None:
    change, sentence = LIES[lie]
    study = masked_study(tmp_path)
    files = replies(study, tmp_path)
    envelope = open_envelope(files[2])
    value = envelope.value(TYPES)
    changed = {**value, "send": change(value["send"])}
    files[2].write_bytes(seal(changed, envelope.header, read_key(tmp_path / "west.key")))

    with pytest.raises(InputError, match=sentence):
        pool(study, files, server_key(tmp_path))


def test_replays_wrong_rounds_other_studies_and_second_answers_are_refused(tmp_path: Path) -> None:
    study = masked_study(tmp_path)
    files = replies(study, tmp_path)
    envelope = open_envelope(files[2])
    key = read_key(tmp_path / "west.key")
    value = envelope.value(TYPES)
    other = {**value, "send": value["send"]._replace(values=value["send"].values + 1)}
    cases = {
        "answers another round": (value, envelope.header._replace(round=2)),
        "belongs to the study": (value, envelope.header._replace(study="0" * 64)),
        "another site's name": (value, envelope.header._replace(sender="south")),
    }
    for sentence, (content, header) in cases.items():
        (tmp_path / "lie.reply").write_bytes(seal(content, header, key))
        with pytest.raises(InputError, match=f"(?s)Nothing of west.*{sentence}"):
            pool(study, [*files[:2], tmp_path / "lie.reply"], server_key(tmp_path))
    (tmp_path / "lie.reply").write_bytes(seal(other, envelope.header, key))
    with pytest.raises(InputError, match=r"(?s)Nothing of west.*2 different answers"):
        pool(study, [*files, tmp_path / "lie.reply"], server_key(tmp_path))


def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    study = masked_study(tmp_path)
    files = replies(study, tmp_path)
    whole = files[2].read_bytes()
    for place in (len(whole) // 2, len(whole) - 3):
        files[2].write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match=r"(?s)Nothing of west.*(damaged|has been changed)"):
            pool(study, files, server_key(tmp_path))


class Killed(BaseException):
    """As by `kill -9`: nothing after it runs."""


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_file_leaves_no_second_answer_and_no_told_mask_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, before: bool
) -> None:
    """Killed before or after the first write (of the answer) or the second (of what is told): the book knows."""
    study = masked_study(tmp_path, FOUR)
    _, request = dropped(study, tmp_path, "east")
    others = rows(study, tmp_path)["south"]
    real = writing.write_whole
    count = 0

    def killed_write(*words: Any) -> None:
        nonlocal count
        count += 1
        if count == writes + 1 and before:
            raise Killed
        real(*words)
        if count == writes + 1:
            raise Killed

    def fit_and_tell() -> None:
        _fit(study, tmp_path, "north")
        book(study, tmp_path, "north").tell(request)

    with monkeypatch.context() as patched:
        patched.setattr("consilience.study.masking.write_whole", killed_write)
        with pytest.raises(Killed):
            fit_and_tell()

    first = writes == 0
    if first and before:  # nothing was masked: the site is as if it had not begun
        with pytest.raises(InputError, match="has not sent its own part"):
            book(study, tmp_path, "north").tell(request)
    else:
        with pytest.raises(InputError, match="has masked another answer"):
            _fit(study, tmp_path, "north", others)
    answer = _fit(study, tmp_path, "north")
    assert _fit(study, tmp_path, "north") == answer
    assert open_envelope_keys(book(study, tmp_path, "north").tell(request), tmp_path) == {"tree.keys.3"}


def open_envelope_keys(content: bytes, folder: Path) -> set[str]:
    (folder / "told").write_bytes(content)
    return set(open_envelope(folder / "told").tensors)


def test_a_damaged_book_stops_everything(tmp_path: Path) -> None:
    study = masked_study(tmp_path)
    _fit(study, tmp_path, "north")
    path = book_path(study, study.member("north"), tmp_path)
    path.write_bytes(path.read_bytes()[:-9])

    with pytest.raises(InputError, match="damaged"):
        _fit(study, tmp_path, "north")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"method": "mixture", "settings": studies.SHORT}, "needs replies that add up"),
        ({"settings": ("wire=float16",)}, "needs replies that add up"),
        ({"fewest_sites": 2}, "write 3 or more"),
        ({"level": 0.9, "calibrate": 0.2, "guarantee": "quantile"}, "which masks hide"),
    ],
)
def test_what_cannot_be_masked_is_refused_before_anybody_signs(
    tmp_path: Path, words: dict[str, Any], sentence: str
) -> None:
    agreed = studies.agreement(tmp_path, **{**SUMS, **words})
    agreed.check()
    with pytest.raises(InputError, match=sentence):
        dataclasses.replace(agreed, secure=True).check()


def test_sums_for_the_scaling_are_masked_with_keys_that_come_first(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = []
    for words in ([], ["--secure"]):
        (tmp_path / f"{len(words)}").mkdir()
        place = Place(tmp_path / f"{len(words)}", invoke, monkeypatch)
        (place.root / "server" / "columns.toml").write_text(COLUMNS)
        study = ["study", "new", "sepsis", "--columns", "columns.toml", "--method", "exact", "--scaling", "sums"]
        place.at("server", *study, "--features", "hats:60", *words)
        place.everybody("sepsis.toml")
        if words:
            for name in studies.NAMES:
                place.at(name, "site", "keys", "sepsis.toml", name)
                place.carry(f"{name}.keys", name, "server")
            code, _, err = place.tried("server", "study", "keys", "sepsis.toml", "north.keys", "south.keys")
            assert code == 2 and "Keys of 2 sites are here" in err
            place.at("server", "study", "keys", "sepsis.toml", *(f"{name}.keys" for name in studies.NAMES))
            place.everybody("sepsis.toml")
        for name in studies.NAMES:
            place.at(name, "site", "sums", "sepsis.toml", "data.csv", "--site", name)
            place.carry(f"{name}.sums", name, "server")
        files = [f"{name}.sums" for name in studies.NAMES]
        if words:
            code, _, err = place.tried("server", "study", "scale", "sepsis.toml", *files[:2])
            assert code == 2 and "Nothing of west is here" in err
            assert set(open_envelope(place.root / "server" / files[0]).tensors) >= {"tree.masked.values"}
        place.at("server", "study", "scale", "sepsis.toml", *files)
        scaled = read(place.root / "server" / "sepsis.toml")
        constants.append([(c.centre, c.spread, c.quantiles) for c in scaled.agreement.columns])
        assert [sender.name for sender in scaled.sums] == list(studies.NAMES)

    assert constants[0] == constants[1]  # to the six digits that are written
    assert sum(len(quantiles) == 9 for *_, quantiles in constants[0]) == 2


def test_a_key_for_masks_is_signed(tmp_path: Path) -> None:
    study = masked_study(tmp_path)
    text = study_text(study)
    one, two = (site.masks for site in study.sites[:2])
    (tmp_path / "study.toml").write_text(text.replace(one, two))

    with pytest.raises(InputError, match="signature of 'north' is not for this agreement"):
        read(tmp_path / "study.toml")
    (tmp_path / "study.toml").write_text(text)
    assert read(tmp_path / "study.toml") == study


def test_the_commands_of_a_masked_study(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    place.begun("--secure", "--method", "exact", "--rows-per-parameter", "1")
    place.fitted()
    text = (tmp_path / "server" / "sepsis.toml").read_text()
    assert "[privacy]\nsecure = true  # sites mask what they send" in text and text.count("masks = ") == 3

    out = place.at("server", "study", "pool", "sepsis.toml", *place.files)

    assert "summed under masks" in out and "influence on the model was not measured" in out
    assert "masked" in place.at("north", "site", "check", "sepsis.toml", "data.csv")
    code, _, err = place.tried("server", "study", "drop", "sepsis.toml", "west")
    assert code == 2 and "so it has answered" in err
    code, _, err = place.tried("server", "study", "new", "other", "--method", "mixture", "--secure")
    assert code == 2 and "needs replies that add up" in err
