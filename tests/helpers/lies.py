"""Lies that a site can tell in a reply, by the rule of the gate that refuses them; and studies to tell them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from doors import Lie

from consilience import tree
from consilience.distributions.posterior import Dense, Point
from consilience.study.protocol.target import Target
from consilience.study.validation import gate

BASES: dict[str, dict[str, Any]] = {
    "samples": {"most_bytes": 20_000},
    "evidence": {"method": "evidence", "settings": ("inference.epochs=2",), "hand_out": "ensemble", "smallest": 5},
    "dense": {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=True")},
    "diagonal": {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=False")},
    "other kinds": {"leaves": ("Gaussian",)},  # than the method sends
    "point": {"method": "fedavg", "settings": ("inference.epochs=2",)},
    "control": {"method": "scaffold", "settings": ("inference.epochs=2",)},
    "beta": {"method": "beta", "hand_out": "ensemble"},
    "bcm": {"method": "bcm", "hand_out": "ensemble"},
    "fitted": {"method": "variational", "settings": ("inference.epochs=2",)},
    "factor": {"method": "pvi", "settings": ("inference.epochs=2",)},
    "dense factor": {
        "method": "pvi",
        "settings": ("inference=Laplace", "inference.mode.epochs=2", "inference.dense=True", "dense=True"),
    },
    "rows": {
        "method": "coreset",
        "settings": (
            "learn.updates=1",
            "learn.steps=2",
            "learn.data_steps=1",
            "learn.coreset_steps=1",
            "downstream.epochs=2",
        ),
    },
    "lessons": {"method": "dosfl", "settings": ("learn.updates=1", "learn.steps=2")},
    "sums": {"method": "exact", "settings": (), "smallest": 5},
    "hierarchical": {"method": "hierarchical", "settings": ()},
    "number": {
        "method": "gaussian_product",
        "settings": ("inference.mode=Newton", "inference.dense=True"),
        "target": Target("died", (), "", (-20.0, 20.0), 0.0, 2.0),
        "noise": 0.5,
    },
}

Change = Callable[[dict[str, Any]], dict[str, Any]]


def params(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """Other samples."""
    return lambda value: {**value, "send": value["send"]._replace(params=change(dict(value["send"].params)))}


def weight(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Another first weight."""
    return params(lambda p: {**p, "0.weight": change(p["0.weight"])})


def size(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Another number of rows."""
    return lambda value: {**value, "size": change(value["size"])}


def counts(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Other class counts."""
    return lambda value: {**value, "send": value["send"]._replace(counts=change(value["send"].counts))}


def variance(factor: float) -> Change:
    """Another variance of every weight."""
    return lambda value: {
        **value,
        "send": value["send"]._replace(var={k: factor * v for k, v in value["send"].var.items()}),
    }


def send(change: Callable[[Any], Any]) -> Change:
    """Other things sent."""
    return lambda value: {**value, "send": change(value["send"])}


def scaled(factor: float) -> Change:
    """All that is sent, times a factor."""
    return send(lambda sent: tree.map(lambda leaf: leaf * factor if leaf.is_floating_point() else leaf, sent))


def certain(precision: float) -> Change:
    """The opposite of what was found, with this certainty."""
    return send(lambda sent: Dense(-sent.mean, precision * torch.eye(len(sent.mean)).to(sent.mean)))


def coreset(change: Callable[[Any], Any]) -> Change:
    """Other pseudo-rows."""
    return send(lambda sent: sent._replace(coreset=change(sent.coreset)))


def factor(change: Callable[[Any], Any]) -> Change:
    """Another change of a factor."""
    return send(lambda sent: (change(sent[0]), *sent[1:]))


def in_gram(i: int, amount: float) -> Change:
    """Another number in the triangle of a Gram matrix, the first of which counts the rows."""

    def changed(sums: Any) -> Any:
        gram = sums.gram.clone()
        gram[i] += amount * float(gram.abs().max())
        return sums._replace(gram=gram)

    return send(changed)


def in_cross(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Other sums of features by class."""
    return send(lambda sent: sent._replace(cross=change(sent.cross)))


def few_of_one_class(n: torch.Tensor) -> torch.Tensor:
    """As many rows, but three of the first class."""
    return torch.stack([n[0] * 0 + 3, n.sum() - 3])


TABLE: dict[Callable[..., None], dict[str, Lie]] = {
    gate.check_form: {
        "other names": Lie(
            "its names are wrong: 'params.0.bias' is missing.",
            change=params(lambda p: {"9.bias" if k == "0.bias" else k: v for k, v in p.items()}),
        ),
        "more names": Lie(
            "its names are wrong: 'params.more' is not expected.",
            change=params(lambda p: {**p, "more": torch.zeros(2)}),
        ),
        "another order": Lie("put together in another way", change=params(lambda p: dict(reversed(p.items())))),
        "another kind": Lie("put together in another way", change=lambda v: {**v, "send": Point(v["send"].params)}),
        "more parts": Lie("it is not put together as replies are.", change=lambda v: {**v, "more": torch.zeros(1)}),
        "no size": Lie("it is not put together as replies are.", change=lambda v: {"send": v["send"]}),
        "another shape": Lie("'params.0.weight' has the shape (1, ", change=weight(lambda w: w[:1])),
        "another type": Lie("of float32 is expected.", change=weight(torch.Tensor.double)),
    },
    gate.check_finite: {
        "not a number": Lie("it holds numbers that are not finite", change=weight(lambda w: w * torch.nan)),
        "infinite": Lie("it holds numbers that are not finite", change=weight(lambda w: w / 0)),
    },
    gate.check_gaussians: {
        "not positive definite": Lie(
            "it has a precision matrix that is not positive definite.",
            base="dense",
            change=lambda v: {**v, "send": v["send"]._replace(precision=-v["send"].precision)},
        ),
        "not symmetric": Lie(
            "it has a precision matrix that is not positive definite.",
            base="dense",
            change=lambda v: {**v, "send": v["send"]._replace(precision=v["send"].precision.triu())},
        ),
        "a variance of nothing": Lie("it has a variance that is not positive.", base="diagonal", change=variance(0.0)),
        "a negative variance": Lie("it has a variance that is not positive.", base="diagonal", change=variance(-1.0)),
    },
    gate.check_size: {
        "a negative size": Lie("it claims -42 rows", change=size(torch.neg)),
        "half a row": Lie("it claims 42.5 rows", change=size(lambda n: n + 0.5)),
        "more rows than anybody has": Lie("it claims 4.2e+10 rows", change=size(lambda n: n * 1e9)),
        "a thousand million rows": Lie("it claims 1e+09 rows", change=size(lambda n: n * 0 + 1e9)),
        "1e14 rows": Lie("it claims 1e+14 rows", change=size(lambda n: n * 0 + 1e14)),
        "7.5 rows": Lie("it claims 7.5 rows", change=size(lambda n: n * 0 + 7.5)),
        "one row more than it committed to": Lie(
            "it claims 101 rows; 0 (withheld) or a whole number from 10 to 100", change=size(lambda n: n * 0 + 101)
        ),
        "fewer rows than agreed": Lie(
            "it claims 3 rows; 0 (withheld) or a whole number from 10", change=size(lambda n: n * 0 + 3)
        ),
        "two sizes": Lie("it claims nan rows", change=size(lambda n: torch.stack([n, n]))),
    },
    gate.check_counts: {
        "negative counts": Lie(
            "its class counts are negative or fractional.", base="evidence", change=counts(lambda n: n * 0 - 1)
        ),
        "fractional counts": Lie(
            "its class counts are negative or fractional.", base="evidence", change=counts(lambda n: n - 0.5)
        ),
        "a rare class": Lie(
            "it says that a class was seen fewer than 5 times", base="evidence", change=counts(few_of_one_class)
        ),
        "counts of more rows": Lie("its class counts add up to 62", base="evidence", change=counts(lambda n: n + 10)),
        "counts of 2⁶² rows": Lie(
            "its class counts add up to 9.22337e+18", base="evidence", change=counts(lambda n: n * 0 + 2**62)
        ),
        "counts of more rows than it committed to, size withheld": Lie(
            "its class counts add up to 120, more than the 100 rows",
            base="evidence",
            change=lambda v: counts(lambda n: n * 0 + 60)(size(lambda n: n * 0)(v)),
        ),
        "counts of fewer rows": Lie(
            "its class counts add up to 20", base="evidence", change=counts(lambda n: n * 0 + 10)
        ),
    },
    gate.check_kinds: {
        "a kind that may not leave": Lie(
            "it holds a 'Samples', which the study does not let leave", base="other kinds"
        ),
    },
    gate.check_weights: {
        "a mean of 3e38": Lie(
            "it holds weights of norm", base="dense", change=send(lambda s: s._replace(mean=s.mean * 0 + 3e38))
        ),
        "a diagonal mean of 3e38": Lie(
            "it holds weights of norm",
            base="diagonal",
            change=send(lambda s: s._replace(mean={k: m * 0 + 3e38 for k, m in s.mean.items()})),
        ),
        "samples × 1e30": Lie("it holds weights of norm", change=scaled(1e30)),
        "samples × 1e30 for β": Lie("it holds weights of norm", base="beta", change=scaled(1e30)),
        "samples × 1e30 for a product": Lie("it holds weights of norm", base="bcm", change=scaled(1e30)),
        "weights × 1e30": Lie("it holds weights of norm", base="point", change=scaled(1e30)),
        "weights × 1e30 beside a control variate": Lie("it holds weights of norm", base="control", change=scaled(1e30)),
        "weights × 1e30 under class counts": Lie(
            "it holds weights of norm",
            base="evidence",
            change=send(lambda s: s._replace(posterior=tree.scale(s.posterior, 1e30))),
        ),
        "weights of a thousand": Lie(
            "it holds weights of norm",
            base="point",
            change=send(lambda s: Point({k: torch.full_like(v, 1e3) for k, v in s.params.items()})),
        ),
    },
    gate.check_precisions: {
        "a precision of 1e15, the mean negated": Lie("its precision adds up to", base="dense", change=certain(1e15)),
        "a precision of 1e5, the mean negated": Lie("its precision adds up to", base="dense", change=certain(1e5)),
        "a precision of 1e15 for a number": Lie("its precision adds up to", base="number", change=certain(1e15)),
        "less certain than the prior": Lie("it is less certain than the prior", base="dense", change=certain(1e-3)),
        "a variance of 1e-45": Lie(
            "its precision adds up to",
            base="diagonal",
            change=send(lambda s: s._replace(var={k: v * 0 + 1e-45 for k, v in s.var.items()})),
        ),
        "a variance of 1e-45 of a fitted Gaussian": Lie(
            "its precision adds up to",
            base="fitted",
            change=send(lambda s: s._replace(var={k: v * 0 + 1e-45 for k, v in s.var.items()})),
        ),
        "a variance × 1e9": Lie("it is less certain than the prior", base="diagonal", change=variance(1e9)),
        "a variance × 1e12 of a fitted Gaussian": Lie(
            "wider than its weights can lie apart", base="fitted", change=variance(1e12)
        ),
        "a factor of precision 1e15": Lie(
            "it changes a precision by 1e+15",
            base="factor",
            change=factor(lambda n: n._replace(precision={k: p * 0 + 1e15 for k, p in n.precision.items()})),
        ),
        "a factor that moves the weights by 1e30": Lie(
            "it moves the weights by a term of 1e+30",
            base="factor",
            change=factor(lambda n: n._replace(linear={k: p * 0 + 1e30 for k, p in n.linear.items()})),
        ),
        "equal samples": Lie(
            "its 2 samples lie within a variance of 0",
            change=params(lambda p: {k: v[:1].expand_as(v).clone() for k, v in p.items()}),
        ),
        "equal samples for a product": Lie(
            "samples lie within a variance of 0",
            base="bcm",
            change=params(lambda p: {k: v[:1].expand_as(v).clone() for k, v in p.items()}),
        ),
        "a dense factor of precision 1e15": Lie(
            "it changes a precision by 1e+15",
            base="dense factor",
            change=factor(lambda n: n._replace(precision=1e15 * torch.eye(len(n.precision)).to(n.precision))),
        ),
    },
    gate.check_pseudo_rows: {
        "pseudo-rows of negative weight": Lie(
            "weights below 0", base="rows", change=coreset(lambda c: c._replace(w=-c.w))
        ),
        "pseudo-rows of no weight": Lie(
            "so that they stand for none", base="rows", change=coreset(lambda c: c._replace(w=0 * c.w))
        ),
        "pseudo-rows for 1e9 rows": Lie(
            "its pseudo-rows count for 1e+09 rows",
            base="rows",
            change=coreset(lambda c: c._replace(w=c.w * 0 + 1e9 / len(c.w))),
        ),
        "labels of no class": Lie(
            "labels that are none of the 2 classes", base="rows", change=coreset(lambda c: c._replace(y=c.y + 2))
        ),
        "negative labels": Lie(
            "labels that are none of the 2 classes", base="rows", change=coreset(lambda c: c._replace(y=c.y - 1))
        ),
        "pseudo-rows far out": Lie(
            "far beyond the agreed ranges", base="rows", change=coreset(lambda c: c._replace(x=c.x * 0 + 1e30))
        ),
        "lessons with labels of no class": Lie(
            "labels that are none of the 2 classes", base="lessons", change=send(lambda s: s._replace(y=s.y + 2))
        ),
    },
    gate.check_numbers: {
        "a control variate × 1e30": Lie(
            "and nothing above",
            base="control",
            change=send(lambda s: (s[0], {k: c * 0 + 1e30 for k, c in s[1].items()})),
        ),
        "steps halved 1e30 times": Lie(
            "'halved' holds 1e+30", base="rows", change=send(lambda s: s._replace(halved=s.halved * 0 + 1e30))
        ),
    },
    gate.check_method: {
        "a factor with a negative precision": Lie(
            "no posterior has a negative precision",
            base="factor",
            change=factor(lambda n: n._replace(precision={k: p * 0 - 10 for k, p in n.precision.items()})),
        ),
        "a dense factor with a negative precision": Lie(
            "no posterior has a negative precision",
            base="dense factor",
            change=factor(lambda n: n._replace(precision=-10 * torch.eye(len(n.precision)).to(n.precision))),
        ),
        "a Gram matrix less than nothing": Lie(
            "its Gram matrix is not positive semi-definite",
            base="sums",
            change=send(lambda s: s._replace(gram=torch.cat([s.gram[: s.features], -s.gram[s.features :]]))),
        ),
        "a Gram matrix with a product larger than its squares": Lie(
            "its Gram matrix is not positive semi-definite", base="sums", change=in_gram(-2, 1.0)
        ),
        "a Gram matrix of more rows than are counted": Lie(
            "its counts do not add up", base="sums", change=in_gram(0, 1.0)
        ),
        "rows moved from one class to the other": Lie(
            "its counts do not add up",
            base="sums",
            change=send(lambda s: s._replace(counts=s.counts + torch.tensor([1.0, -1.0]).to(s.counts))),
        ),
        "sums by class of other rows than the Gram matrix's": Lie(
            "its sums by class are not those of its Gram matrix",
            base="sums",
            change=in_cross(lambda c: torch.cat([c[:, :1], 1.5 * c[:, 1:]], 1)),
        ),
        "sums by class that no rows have": Lie(
            "no rows have both its Gram matrix and its sums with the targets",
            base="sums",
            change=in_cross(lambda c: torch.cat([c[:, :1], c[:, 1:] + 40 * torch.tensor([[1.0], [-1.0]]).to(c)], 1)),
        ),
        "rows that say 100 times as much": Lie(
            "it holds weights of norm", base="hierarchical", change=send(lambda s: s._replace(linear=100 * s.linear))
        ),
        "rows that say a million times as much": Lie(
            "it holds weights of norm", base="hierarchical", change=send(lambda s: s._replace(linear=1e6 * s.linear))
        ),
        "a factor that moves the weights by 1e4": Lie(
            "it holds weights of norm",
            base="factor",
            change=factor(lambda n: n._replace(linear={k: p * 0 + 1e4 for k, p in n.linear.items()})),
        ),
        "steps of length 1000": Lie(
            "it asks for steps", base="lessons", change=send(lambda s: s._replace(rates=s.rates * 0 + 1e3))
        ),
    },
    gate.check_bytes: {
        "too many bytes": Lie("more than the 20,000 agreed.", change=weight(lambda w: w.repeat(1, 1, 4000))),
    },
    gate.check_round: {"another round": Lie("it answers another round than round 1.", round=2)},
    gate.check_sender: {
        "another site": Lie("it answers in another site's name", site="north"),
        "another number": Lie("under another number than the study lists for it", number=7),
    },
    gate.check_signature: {
        "unsigned": Lie("its signature is not that site's", signature="none"),
        "forged": Lie("its signature is not that site's", signature="forged"),
    },
    gate.check_once: {
        "a second answer": Lie(
            "there are 2 different answers of this site", change=size(lambda n: n + 1), honest="before"
        ),
    },
    gate.check_message: {
        "another message": Lie("it answers another message than the coordinator's of round 1", message="0" * 64),
    },
}
UNKNOWABLE = {  # what a site whose rows say the opposite would send
    "the opposite sign of samples": Lie("", change=scaled(-1.0)),
    "the opposite sign of a mean": Lie("", base="dense", change=send(lambda s: s._replace(mean=-s.mean))),
    "the opposite of what rows say": Lie("", base="hierarchical", change=send(lambda s: s._replace(linear=-s.linear))),
    "classes exchanged": Lie(
        "", base="sums", change=send(lambda s: s._replace(cross=s.cross.flip(0), counts=s.counts.flip(0)))
    ),
    "labels of pseudo-rows exchanged": Lie("", base="rows", change=coreset(lambda c: c._replace(y=1 - c.y))),
}
LIES = {name: lie for lies in TABLE.values() for name, lie in lies.items()}


def as_markdown() -> str:
    """The table of lies as docs/study.md shows it."""
    lines = ["| refused | lies that the tests tell at both doors |", "| --- | --- |"]
    for check in (*gate.ARRIVAL, *gate.CONTENT):
        rule = str(check.__doc__).split("\n")[0].removeprefix("Refuse ").rstrip(".")
        lines.append(f"| {rule} | {'; '.join(TABLE[check])} |")
    return "\n".join(lines) + "\n"
