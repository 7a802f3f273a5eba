"""The contract: a method is two pure functions with typed values between them.

`contract` holds `Method`, six functions, and `Bound`; `about` the nine facts that a method states of itself;
`capabilities` what it can do beside. `declared` says what follows from these; `states` what the server knows between
rounds; `which` whose model predicts.
"""

from consilience.method.about import ONE_SHOT, About, Needs, ReplyKind, Rounds
from consilience.method.capabilities import (
    BatchNormed,
    Diagnosed,
    Imputable,
    Knob,
    Multiplied,
    OnColumns,
    OnFeatures,
    Personal,
    Pooling,
    Private,
    Releasable,
    Reusable,
    ShowsInputs,
    Streaming,
    Summable,
    Tunable,
    Validated,
)
from consilience.method.contract import Bound, Method
from consilience.method.declared import group, moves_statistics, name, needs, usual_rounds
from consilience.method.states import Pooled, State, Stepped, keep_fields, server_step, with_statistics
from consilience.method.which import is_made_at_home, is_personal, own_models, state_for

__all__ = [
    "ONE_SHOT",
    "About",
    "BatchNormed",
    "Bound",
    "Diagnosed",
    "Imputable",
    "Knob",
    "Method",
    "Multiplied",
    "Needs",
    "OnColumns",
    "OnFeatures",
    "Personal",
    "Pooled",
    "Pooling",
    "Private",
    "Releasable",
    "ReplyKind",
    "Reusable",
    "Rounds",
    "ShowsInputs",
    "State",
    "Stepped",
    "Streaming",
    "Summable",
    "Tunable",
    "Validated",
    "group",
    "is_made_at_home",
    "is_personal",
    "keep_fields",
    "moves_statistics",
    "name",
    "needs",
    "own_models",
    "server_step",
    "state_for",
    "usual_rounds",
    "with_statistics",
]
