"""The first page, in plain words: for those who decide whether a study may go on and do not read tables of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from consilience.report.schema.run_findings import RunReport
from consilience.report.schema.wording import Json, count, enumerate_words, human_bytes, privacy_note

KEY_DIGITS = 12  # of a public key: as many as commands print
MOST_SIGNERS = 40  # that are listed one by one


class Answer(NamedTuple):
    """A question that somebody without statistics would ask, and what is to be said.

    Attributes:
        question: The question.
        sentences: The answer.
    """

    question: str
    sentences: Sequence[str]


def study_words(run: RunReport) -> list[Answer]:
    """Say of a study what left each site, what is and is not protected, and who signed.

    Args:
        run: The study's account, without small counts.

    Returns:
        Questions and answers.
    """
    return [
        Answer("What was done", _purpose(run)),
        Answer("What left each site", _left(run)),
        Answer("What is protected", _protected(run)),
        Answer("What is not protected", _open(run)),
        Answer("Who signed", _signed(run)),
    ]


def run_words(run: RunReport) -> list[Answer]:
    """Say of a run what leaves a site, and what that protects.

    Returns:
        Questions and answers; none for a report that does not say what its sites send.
    """
    sends = run.content.get("sends")
    if not sends:
        return []
    left = [f"In each round a site sends {sends}.", "Its rows stay where they are."]
    if run.ledger and run.ledger.up is not None:
        left.append(f"In this run {human_bytes(run.ledger.up)} were sent, by all sites together.")
    protected = ["This run simulates the sites on one machine, which held the rows of all of them."]
    note = privacy_note(run.content)
    if note:
        protected.append(note)
    else:
        protected.append(f"{_NO_NOISE} In a study between real sites, agree on masks or noise where that matters.")
    return [Answer("What leaves each site", left), Answer("What is and is not protected", protected)]


_NO_NOISE = (
    "No noise is added, so nothing bounds what somebody with enough other knowledge could work out about one person "
    "from the numbers that are sent, or from the model."
)


def _purpose(run: RunReport) -> list[str]:
    account = run.content
    columns = count(len(account.get("columns") or {}), "column")
    sites = count(run.sites, "site")
    return [
        f"{sites} made one model that predicts {account['target']} from {columns}. "
        "Each worked on its own rows; no row was handed over.",
        f"What they agreed on beforehand is the agreement {str(account['hash'])[:12]}; it says which columns are used, "
        "what may leave a site and what the sites get back.",
    ]


def _left(run: RunReport) -> list[str]:
    account = run.content
    rounds = "once"
    if run.rounds and run.rounds > 1:
        rounds = f"in each of {count(run.rounds)} rounds"
    sentences = [f"Each site sent, {rounds}, {account['sends']}."]
    if run.ledger and run.ledger.per_site:
        sizes = sorted(site.up for site in run.ledger.per_site if site.up is not None)
        if sizes:
            span = human_bytes(sizes[0])
            if human_bytes(sizes[-1]) != span:
                span = f"{span} to {human_bytes(sizes[-1])}"
            sentences.append(f"That is {span} of numbers per site and round; “Communication” below lists each site.")
    if run.rows.get("set aside"):
        sentences.append("Each site also sent sums of scores over rows it had held out, by which the model was chosen.")
    if run.sets is not None:
        sentences.append("Each site also sent counts of how unusual the rows it had held out look to the model.")
    if run.evaluated:
        sentences.append("Sites also sent a table of how well predicted probabilities agree with what was observed.")
    sentences.append("Everybody can see each site's name and the number of rows it signed for.")
    return sentences


def _protected(run: RunReport) -> list[str]:
    account = run.content
    sentences = [
        "Rows stay at the sites, and so does how well the model does on each site's own test rows, unless a table of "
        "it was agreed on and sent.",
        f"No count of fewer than {count(run.smallest_count)} people is shown in this report.",
        "Every file carries the signature of the site that sent it; a changed file is refused.",
    ]
    if account.get("secure"):
        sentences.append(
            "What a site sent was masked: the coordinator could read the sum over all sites and no site's own numbers, "
            "as long as it did not act together with all other sites but one."
        )
    note = privacy_note(account)
    if note:
        sentences.append(note)
    return sentences


def _open(run: RunReport) -> list[str]:
    account = run.content
    sentences = []
    if not account.get("privacy"):
        sentences.append(_NO_NOISE)
    if not account.get("secure"):
        sentences.append("The coordinator could read what each site sent, and has to be trusted with it.")
    sentences.append(
        "The model is made from everybody's rows and goes back to the sites: whoever has it can ask it questions, and "
        "a copy cannot be called back."
    )
    sentences.append(
        "Nobody can check that a site's rows are true: a site can lie within what was agreed to be plausible."
    )
    return sentences


def _signed(run: RunReport) -> list[str]:
    signers: Sequence[Json] = run.content.get("signers") or []
    if not signers:
        return ["Who signed was not written into this report."]
    listed = [_signer(signer) for signer in signers[:MOST_SIGNERS]]
    if len(signers) > MOST_SIGNERS:
        listed.append(f"{len(signers) - MOST_SIGNERS} more")
    sentences = [f"The agreement was signed by {enumerate_words(listed)}."]
    coordinator = run.content.get("coordinator")
    if coordinator:
        sentences.append(f"The model is signed by the coordinator (key {_digits(coordinator)}).")
    sentences.append("A key is an organisation's only if somebody there has confirmed these digits.")
    return sentences


def _signer(signer: Json) -> str:
    rows = ""
    if signer.get("rows"):
        rows = f" for at most {count(signer['rows'])} rows"
    left = ""
    if signer.get("left"):
        left = ", which has left since"
    return f"{signer['site']}{rows} (key {_digits(signer['key'])}){left}"


def _digits(key: object) -> str:
    """The first digits of a public key, without the name of its kind."""
    return str(key).rpartition(":")[2][:KEY_DIGITS]
