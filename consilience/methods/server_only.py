"""Server only: trained on the labelled rows the server has; the bound that papers leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from consilience.inference import CyclicalSGHMC, Inference
from consilience.method import Method, Needs, State
from consilience.parties import Client, Received, Reply, Server
from consilience.posterior import Posterior
from consilience.task import Task


@dataclass(frozen=True)
class ServerOnly(Method):
    """Ask nobody; train on the server's calibration rows.

    1   p(θ | calibration rows), by any inference
    """

    name: ClassVar[str] = "server_only"
    needs: ClassVar[Needs] = Needs.LABELS
    sends: ClassVar[str] = "nothing"
    one_shot: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    tempers: ClassVar[bool] = False
    moves_statistics: ClassVar[bool] = True

    inference: Inference = CyclicalSGHMC(epochs=200, batch=10)  # how the server infers: few rows need many passes

    def broadcast(self, state: State) -> tuple[()]:
        return ()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply((), torch.zeros(()))

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        assert server.calibration is not None
        return State(self.inference(task, state.posterior, Client(server.calibration, (), server.key)))  # 1
