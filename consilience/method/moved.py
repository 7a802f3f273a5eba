"""One clear sentence for methods that were written for an earlier contract."""

from __future__ import annotations

from consilience.errors import InputError

FACTS = {  # a class variable as it was → what says the same now
    "name": "write `about = About(name=…)`",
    "title": "write `about = About(paper=…)`",
    "source": "write `about = About(paper=…)`",
    "sends": "write `about = About(sends=…)`",
    "needs": "write `about = About(needs=…)`",
    "tasks": "write `about = About(tasks=…)`",
    "one_shot": "write `about = About(rounds=ONE_SHOT)`",
    "usual_rounds": "write `about = About(rounds=Rounds(…))`",
    "everyone": "write `about = About(everyone=True)`",
    "carries": "write `about = About(types=…)`",
    "shares": "write `about = About(reply=ReplyKind.POSTERIOR)`",
    "sends_inference": "write `about = About(reply=ReplyKind.WEIGHTS)`",
    "sums": "write `about = About(reply=ReplyKind.SUM)` and derive from `Summable` of consilience.method as well",
    "moves_statistics": "derive from `BatchNormed` of consilience.method as well",
    "multiplies": "derive from `Multiplied` of consilience.method as well",
    "by_site": "derive from `Pooling` of consilience.method as well",
    "heads": "derive from `OnFeatures` of consilience.method as well",
    "explains": "derive from `OnFeatures` of consilience.method as well",
    "own_prior": "derive from `OnFeatures` of consilience.method as well",
    "network": "derive from `OnColumns` of consilience.method as well",
    "on_linear": "derive from `OnColumns` of consilience.method as well",
    "private": "derive from `Private` of consilience.method as well",
    "private_rounds": "derive from `Private` of consilience.method as well",
    "bound": "derive from `Bound` of consilience.method",
    "pooled": "derive from `Bound` of consilience.method",
    "silent": "derive from `Bound` of consilience.method",
    "tempers": "derive from `Bound` of consilience.method",
    "common": "derive from `Bound` of consilience.method",
}
FUNCTIONS = {  # a function that every method had → the capability that has it
    **dict.fromkeys(("averages", "summation", "folds", "fold"), "Summable"),
    **dict.fromkeys(("protect", "spends"), "Private"),
    **dict.fromkeys(("doubt", "implied", "fewest"), "Validated"),
    **dict.fromkeys(("at_home", "personal", "members"), "Personal"),
    **dict.fromkeys(("without_names", "remarks"), "Pooling"),
    **dict.fromkeys(("knob", "turn", "sweep"), "Tunable"),
    **dict.fromkeys(("diagnose", "monitored"), "Diagnosed"),
    "hand_out": "Releasable",
    "reply_settings": "Reusable",
    "imputed": "Imputable",
    "sums_by_class": "OnFeatures",
    "weighs": "OnFeatures",
    "shows_inputs": "ShowsInputs",
}


def refuse_old_names(kind: type) -> None:
    """Refuse a method's class that says by a class variable, or does by a function, what nobody would look at.

    Raises:
        InputError: It sets what is a fact of `About` or a capability now, or lacks the capability of its function.
    """
    if kind.__module__.startswith("consilience.method."):
        return
    known = {name for above in kind.__mro__[1:] for name in vars(above)}
    for name, value in vars(kind).items():
        annotation = str(vars(kind).get("__annotations__", {}).get(name, "ClassVar"))
        if name in FACTS and name not in known and "ClassVar" in annotation and not callable(value):
            raise InputError(f"{kind.__name__} sets the class variable `{name}`, which nothing reads: {FACTS[name]}.")
        if name in FUNCTIONS and name not in known:
            raise InputError(
                f"{kind.__name__} writes `{name}`, which nothing calls: derive from `{FUNCTIONS[name]}` of "
                "consilience.method as well."
            )
