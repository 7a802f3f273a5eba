"""A reply by file: the method runs on a site's training rows, once for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from consilience.data.sites import Data
from consilience.distributions.posterior import find_posterior
from consilience.errors import InputError
from consilience.key import Stream
from consilience.messages import Reply
from consilience.method import Method
from consilience.method.declared import combines, shows_inputs
from consilience.methods.claims import privacy_statement
from consilience.metrics.scores import scores
from consilience.privacy.disclosure.hidden_rows import RowSearch
from consilience.privacy.entropy import secret_draws
from consilience.runs.engines import computing
from consilience.runs.engines.client_turn import Turn, alone, client_view
from consilience.serialisation.codec import kept_types_of, types_of
from consilience.study.exchange import Exchange, File, Made
from consilience.study.files import open_file
from consilience.study.masking import MESSAGE, REPLY
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.rehearsal import Broadcasts, invent_rows, server_of
from consilience.study.recall import marks_file, marks_path
from consilience.study.rows import Parts, fingerprint, training_rows
from consilience.study.spending import cost_of_round
from consilience.study.summing import mask_reply
from consilience.study.told import tell_rows
from consilience.study.validation.gate import Refused, Rules
from consilience.study.validation.message import Broadcast, check_asked, check_first, check_message, limit_weights
from consilience.study.validation.rules import begins_alone, may_leave, message_hash, rules_of
from consilience.task import Task
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

SENT = "sent in round "  # of a memory's entries that hold a reply
ASKED = "asked in round "  # and of those that hold a message whose answers could be combined with later ones


def first_message(study: Study) -> Tree:
    """Compute what every site knows for itself before the first round.

    Raises:
        InputError: The method begins with the coordinator's own rows.
    """
    agreement = study.agreement
    method = agreement.build_method()
    if shows_inputs(method):
        raise InputError(
            f"{agreement.method} begins with a message from the coordinator: give it with message= (--message)."
        )
    return method.broadcast(method.init(agreement.build_task(), server_of(agreement, len(study.active))))


def read_message(study: Study, path: Path | None) -> tuple[Tree, int]:
    """Read the coordinator's message, and check that it is one to start from.

    Args:
        path: The file; None for the study's own first message.

    Returns:
        The message and its round, from 1 on.

    Raises:
        InputError: The file is not a message of the study's coordinator, or not one that the method sends.
    """
    if path is None:
        return first_message(study), 1
    agreement = study.agreement
    envelope = open_file(study, path, "message")
    round_ = envelope.header.round
    if envelope.header.sender != "server":
        raise InputError(f"{path} is not used: it does not come from the coordinator.")
    if not 1 <= round_ <= agreement.rounds:
        raise InputError(f"This message is for round {round_} and the study has {agreement.rounds}.")
    method = agreement.build_method()
    task = agreement.build_task()
    message = envelope.value(types_of(method))
    first = None
    if begins_alone(agreement, round_):
        first = first_message(study)
    check_start(message, Broadcasts(method, task, invent_rows(agreement)).until(round_), task, first, str(path))
    return message, round_


def check_start(message: Tree, sent: Iterable[Broadcast | None], task: Task, first: Tree | None, where: str) -> None:
    """Refuse a message that the method does not send, or that no site should start from.

    Args:
        message: What a site would start from.
        sent: Messages that the method sends, for their form.
        first: What this round begins with, by the site's own account; None where the coordinator begins it.
        where: Where the message is from.

    Raises:
        InputError: It is not used.
    """
    try:
        check_message(message, sent, task)
        if first is not None:
            check_first(message, first)
    except Refused as error:
        raise InputError(f"{where} is not used: {error}") from error


class Fit(File):
    """A round's question by file: the coordinator's message, or in a first round what every site knows for itself.

    Attributes:
        message: What the site starts from.
        asked: Its hash.
    """

    kind = title = "reply"
    part = "train"

    def __init__(self, study: Study, message: Path | None = None, replaces: bool = False) -> None:
        """Read a message, and check that it is one to start from.

        Args:
            message: The file; None in a first round that needs none.
            replaces: Whether a first reply from other rows is written over.

        Raises:
            InputError: The file is not a message of the study's coordinator, or not one that the method sends.
        """
        super().__init__(study)
        self.message, self.round = read_message(study, message)
        self.asked = message_hash(study.agreement, self.message, self.round)
        self.replaces = replaces and self.round == 1

    @property
    def masked(self) -> str:
        """What the sum is called under masks."""
        return REPLY if self.study.agreement.secure else ""

    @property
    def most_bytes(self) -> int:
        """How large the file may be."""
        return self.study.agreement.most_bytes

    def make(self, site: Site) -> Made:
        """Run the method's `local` on the training rows, or find what was sent before with noise.

        Returns:
            The reply; the site keeps the method's memory after this round and the one before, which rows were trained

        Raises:
            InputError: A file does not belong here, or the reply may not leave.
        """
        study, member, memory, round_ = self.study, site.member, site.memory, self.round
        agreement = study.agreement
        method = agreement.build_method()
        rows = site.rows
        if rows is None:
            raise InputError("This site was made without its rows: give them by role (rows=).")
        answered = _answered(study, member, memory, rows, self.replaces)
        check_once(answered, round_, self.asked, memory)
        check_noise_once(method, answered, round_, memory)
        if agreement.privacy is not None:
            agreement.privacy.check(len(study.active), sum(one.rows for one in study.active))
        check_commitment(member, rows)
        memories = _memories(study, member, memory, round_, rows)
        training = training_rows(agreement, rows.train)
        asked = _asked(study, memory, answered, round_)
        if combines(method):
            asked[str(round_)] = self.message
        check_answered(method, agreement.build_task(), [*asked.values()], training.data, agreement.smallest)
        sent = _sent(study, memory, answered)
        repeated = str(round_) in sent
        if repeated:
            reply = sent[str(round_)]
        else:
            reply = run_local(agreement, member, self.message, round_, training.data, memories)
        check_leaving(reply, RowSearch(training.data), method, agreement.build_task(), rules_of(agreement, member.rows))
        kept = {str(round_): reply.keep}
        if memories:
            kept = {str(round_ - 1): memories[member.number], **kept}  # so that a lost reply can be made again
        about = {
            "number": member.number,
            "rows": fingerprint(rows.train),
            "rounds": [int(number) for number in kept],
            "answered": {**answered, str(round_): self.asked},
        }
        kept |= {f"{ASKED}{number}": old for number, old in asked.items()}
        if agreement.privacy is not None:
            kept |= {f"{SENT}{number}": (old.send, old.size, old.keep) for number, old in sent.items()}
            kept[f"{SENT}{round_}"] = (reply.send, reply.size, reply.keep)
        header = Header("memory", agreement.hash, agreement.name, member.name, round_, about)
        marks = marks_file(agreement, member.name, member.number, site.key, rows)
        return Made(
            {"send": reply.send, "size": reply.size},
            len(training.data.y),
            rows.train,
            cost_of_round(agreement, round_),
            {
                marks_path(memory): (marks, "Stays here, to know rows by"),
                memory: (seal(kept, header, site.key), "Stays here"),
            },
            repeated,
            {**tell_rows(agreement, training.data, training.merged), "message": self.asked},
            training,
        )

    def mask(self, site: Site, made: Made) -> Tree:
        """Put a mask over a reply."""
        assert isinstance(made.source, Data)
        reply = Reply(made.value["send"], made.value["size"])
        masked = mask_reply(site.masks, self.round, f"{self.asked} {fingerprint(made.source)}", reply)
        return {"send": masked.send, "size": masked.size}


class Asked(Exchange[Reply]):
    """A round's question over Flower; with noise the reply is kept, and never drawn again.

    Killed between keeping and entering, a site hands over what it kept, which is then entered. If what was kept is
    lost, another draw is another release.
    """

    kind = title = "reply"
    part = "train"

    def __init__(
        self, study: Study, round: int, question: str, rows: str, kept: Path, run: Callable[[], Reply]
    ) -> None:
        """Ask for a reply.

        Args:
            round: The round, from 1 on.
            question: What is answered, as a digest.
            rows: The rows it is made from, as a digest.
            kept: Where replies with noise are kept.
            run: Makes a reply that may leave.
        """
        super().__init__(study)
        self.round = round
        self.question = question
        self.rows = rows
        self.kept = kept
        self.run = run

    @property
    def masked(self) -> str:
        """What the sum is called under masks."""
        return MESSAGE if self.study.agreement.secure else ""

    def make(self, site: Site) -> Made:
        """Run the method, or find what was sent before with noise.

        Raises:
            InputError: The round was answered to another question, or the reply stays here.
        """
        agreement = self.study.agreement
        made = Made((), 0, site.role(self.part), cost_of_round(agreement, self.round))
        if agreement.privacy is None:
            return made._replace(value=self.run())
        sent = self._read_sent()
        repeated = str(self.round) in sent
        if repeated and sent[str(self.round)][0] != self.question:
            raise InputError(
                f"This site has answered round {self.round} to another question, and a second answer with other noise "
                "would cost twice the privacy budget: let the server ask as it did before."
            )
        if not repeated:
            sent[str(self.round)] = (self.question, self.run())
        made = made._replace(value=sent[str(self.round)][1], repeated=repeated)
        if repeated:
            return made
        values = {number: (reply.send, reply.size, reply.keep) for number, (_, reply) in sent.items()}
        about = {"questions": {number: asked for number, (asked, _) in sent.items()}}
        header = Header("memory", agreement.hash, agreement.name, site.member.name, self.round, about)
        return made._replace(keeps={self.kept: (seal(values, header, site.key), "Stays here")})

    def _read_sent(self) -> dict[str, tuple[str, Reply]]:
        """What was answered with noise, and to which question, by round."""
        if not self.kept.exists():
            return {}
        envelope = open_file(self.study, self.kept, "memory")
        by_round = envelope.value(kept_types_of(self.study.agreement.build_method()))
        questions = envelope.header.about["questions"]
        return {number: (questions[number], Reply(*value)) for number, value in by_round.items()}

    def mask(self, site: Site, made: Made) -> Tree:
        """Put a mask over a reply."""
        return mask_reply(site.masks, self.round, f"{self.question} {self.rows}", made.value, MESSAGE)

    def seal(self, site: Site, made: Made, value: Tree) -> Reply:
        """Leave signing to Flower's message, which the answer is a part of.

        Args:
            value: The reply, or what stands for it under a mask.
        """
        assert isinstance(value, Reply)
        return value


def check_answered(method: Method, task: Task, messages: Sequence[Tree], data: Data, smallest: int) -> None:
    """Refuse a message at which few rows alone would count in what it and those before ask for.

    Args:
        messages: What a site has answered, and last what it would answer.
        data: The rows that would be summed over.
        smallest: The fewest rows that may be shown.

    Raises:
        InputError: The site does not answer it.
    """
    try:
        check_asked(method, task, messages, data, smallest)
    except Refused as error:
        raise InputError(f"The message is not answered: {error}") from error


def check_leaving(reply: Reply, rows: RowSearch, method: Method, task: Task, rules: Rules) -> None:
    """Refuse to send rows, weights that a message could only have forced, and what the coordinator would refuse.

    Args:
        reply: What the method would send.
        rows: A search for those it was trained on.
        rules: What the site agreed to.

    Raises:
        InputError: The reply stays here.
    """
    if rows.finds_in(reply.send):
        raise InputError("The reply stays here: it holds rows of this site, which never leave it.")
    try:
        limit_weights(reply.send, task)
    except Refused as error:
        raise InputError(f"The reply stays here: {error}") from error
    may_leave(reply, method, rules)


def _sent(study: Study, path: Path, answered: Mapping[str, str]) -> dict[str, Reply]:
    """What was sent with noise, by round: drawn again, the two could be averaged."""
    if study.agreement.privacy is None or not path.exists() or not answered:
        return {}
    by_name = open_file(study, path, "memory").value(kept_types_of(study.agreement.build_method()))
    return {name.removeprefix(SENT): Reply(*value) for name, value in by_name.items() if name.startswith(SENT)}


def _asked(study: Study, path: Path, answered: Mapping[str, str], round: int) -> dict[str, Tree]:
    """The messages that were answered before a round, by round, where answers could be combined."""
    if not path.exists() or not answered:
        return {}
    by_name = open_file(study, path, "memory").value(kept_types_of(study.agreement.build_method()))
    asked = {name.removeprefix(ASKED): message for name, message in by_name.items() if name.startswith(ASKED)}
    return {number: message for number, message in asked.items() if int(number) < round}


def check_once(answered: Mapping[str, str], round: int, message: str, memory: Path) -> None:
    """Refuse a round that was answered to another message; the same may be answered again, should the reply be lost.

    Args:
        answered: The hashes of the messages that this site has answered, by round.
        round: The round, from 1 on.
        message: The hash of its message.
        memory: The file that says so.

    Raises:
        InputError: The site has answered.
    """
    if answered.get(str(round), message) != message:
        raise InputError(
            f"This site has answered round {round} to another message, and a second answer would show more of its "
            f"rows: give the first message again, or move {memory} away to take part in a second run."
        )


def check_noise_once(method: Method, answered: Mapping[str, str], round: int, memory: Path) -> None:
    """Refuse to answer a round again with other noise: two answers cost twice what was promised.

    Args:
        answered: The hashes of the messages that this site has answered, by round.
        round: The round, from 1 on.
        memory: The file that says so.

    Raises:
        InputError: The site has answered, and its promise covers one answer.
    """
    if str(round) in answered and privacy_statement(method) is not None:
        raise InputError(
            f"This site has answered round {round}, and a second answer with other noise would cost twice the privacy "
            f"budget: hand over the reply that was written, or, if it never left this site, move {memory} away."
        )


def _answered(study: Study, member: Member, path: Path, rows: Parts, replace: bool) -> dict[str, str]:
    """The hashes of the messages that were answered, by round; none for rows replaced."""
    if not path.exists():
        return {}
    header = open_envelope(path, "memory").header
    if header.study != study.agreement.hash or header.sender != member.name:
        return {}  # somebody else's: a first round writes over it, a later one refuses it
    about = open_file(study, path, "memory").header.about
    if about.get("rows") != fingerprint(rows.train):
        if replace:
            return {}
        raise InputError(
            "The rows are not those that this site has answered with, and two replies show where they differ: use the "
            f"same table, or, if the reply was never handed over, write over it and {path} with "
            "replace=True (--replace)."
        )
    return dict(about["answered"])


def check_commitment(member: Member, rows: Parts) -> None:
    """Refuse more rows than a site committed to when it joined: the coordinator would not use them.

    Args:
        rows: Its rows by role.

    Raises:
        InputError: There are more.
    """
    count = len(rows.train.y)
    if member.rows and count > member.rows:
        raise InputError(
            f"There are {count:,} rows to train on, and '{member.name}' committed to {member.rows:,} when it joined: "
            "use the table of then, or let the coordinator take it off the list (`study leave`) and join anew."
        )


def run_local(
    agreement: Agreement, member: Member, message: Tree, round_: int, data: Data, memories: dict[int, Tree]
) -> Reply:
    """Run the method's `local` at a site.

    Args:
        message: What it starts from.
        round_: The round, from 1 on.
        data: The rows to train on.
        memories: What the round before left here, by the site's number.

    Raises:
        InputError: The message is of another model.
    """
    method = agreement.build_method()
    task = agreement.build_task()
    turn = Turn(round_ - 1, agreement.key.fold(Stream.LOCAL), (round_ - 1) / agreement.rounds)
    with torch.no_grad(), computing(task), secret_draws():
        client = client_view(method, message, data, memories, member.number, turn)
        try:
            return alone(method, task, message, client, member.number, turn.round)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"The message does not fit the study's model: {reason}. Ask for it again.") from error


def _memories(study: Study, member: Member, path: Path, round_: int, rows: Parts) -> dict[int, Tree]:
    """What the round before left here, by the site's number; nothing before the first."""
    if round_ == 1:
        return {}
    if not path.exists():
        raise InputError(
            f"Round {round_} goes on from what round {round_ - 1} left here: give it with memory= (--memory)."
        )
    envelope = open_file(study, path, "memory")
    header = envelope.header
    by_round = envelope.value(kept_types_of(study.agreement.build_method()))
    if header.sender != member.name or str(round_ - 1) not in by_round:
        raise InputError(f"{path} is not what '{member.name}' kept in round {round_ - 1}: give the right file.")
    if header.about.get("rows") != fingerprint(rows.train):
        raise InputError(f"The rows are not those of round {round_ - 1}: use the same table in all rounds.")
    return {member.number: by_round[str(round_ - 1)]}


def read_memory(study: Study, path: Path, round: int) -> Tree:
    """Read what a site kept in a round.

    Args:
        path: What `site fit` left.
        round: The round, from 1 on.

    Raises:
        InputError: The file is not a memory of this study, or not of this round.
    """
    envelope = open_file(study, path, "memory")
    by_round = envelope.value(kept_types_of(study.agreement.build_method()))
    if str(round) not in by_round:
        raise InputError(f"{path} does not hold what was kept in round {round}, which the model was made in.")
    return by_round[str(round)]


def own_scores(agreement: Agreement, send: Tree, rows: Data) -> dict[str, float]:
    """Score the site's own model on its test rows; these numbers stay here.

    Args:
        send: What is in the reply.

    Returns:
        Scores by name; none where there is no model or no row.
    """
    posterior = find_posterior(send)
    if posterior is None or not len(rows.y):
        return {}
    return scores(agreement.build_task().predictive(posterior)(rows.x), rows.y)
