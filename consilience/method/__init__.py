"""The contract: a method is two pure functions with typed values between them.

`contract` holds `Method`, with what a round calls; `declared` what a method says about itself; `states` what the server
knows between rounds; `sending` what leaves a site; `handing` what becomes of the model; `which` whose model predicts.
"""

from consilience.method.contract import Method
from consilience.method.declared import Needs, group, moves_statistics, name, needs, usual_rounds
from consilience.method.handing import Knob
from consilience.method.states import Pooled, State, Stepped, keep_fields, server_step, with_statistics
from consilience.method.which import is_made_at_home, is_personal, own_models, state_for

__all__ = [
    "Knob",
    "Method",
    "Needs",
    "Pooled",
    "State",
    "Stepped",
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
