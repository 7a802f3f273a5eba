"""One student from any teacher, on unlabelled inputs. The teacher predicts once; the student is ordinary inference.

Change the target, not the optimiser: the student's task has the teacher's distributions for targets and a likelihood
whose negative log is the divergence between them, so every optimiser works as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference import Adam, Inference
from consilience.key import Key
from consilience.likelihood import LOG_NOISE, GaussianNoise, Heteroscedastic, Softmax, normal_gradients
from consilience.models.softmax import log_softmax, softmax
from consilience.parties import Client, Server
from consilience.posterior import Point, Posterior, average, centre, members
from consilience.predictive import Categorical, Predictive
from consilience.prior import Flat
from consilience.task import Task
from consilience.tree import Params

S = TypeVar("S")
Start: TypeAlias = Callable[[Task, Sequence[Posterior], Key], Point]


def at_random(task: Task, posteriors: Sequence[Posterior], key: Key) -> Point:
    """Fresh weights."""
    return task.init(key)


def at_client(task: Task, posteriors: Sequence[Posterior], key: Key) -> Point:
    """The last sample of the client with the lowest number."""
    return Point(members(posteriors[0], key, 1, task.like)[-1])


def at_average(task: Task, posteriors: Sequence[Posterior], key: Key) -> Point:
    """The mean of the clients' centres."""
    return average([centre(p, task.like) for p in posteriors], torch.ones(len(posteriors)))


@dataclass(frozen=True, eq=False)
class MatchClasses(Softmax):
    """KL(teacher ‖ student) over classes, up to the teacher's entropy; targets are the teacher's probabilities."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        return -(y * log_softmax(outputs)).sum(-1)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        return softmax(outputs) * y.sum(-1, keepdim=True) - y, {}


@dataclass(frozen=True)
class MatchNormals(Heteroscedastic):
    """KL(teacher ‖ student) between Normals, up to the teacher's entropy; targets are (mean, variance of y)."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        mean, var = y.unbind(-1)
        student, log_noise = (part.reshape(mean.shape) for part in outputs.chunk(2, dim=-1))
        per_output = 0.5 * ((var + (mean - student) ** 2) * torch.exp(-log_noise) + log_noise)
        return per_output.flatten(1).sum(-1) if per_output.ndim > 1 else per_output

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        mean, var = y.unbind(-1)
        student, log_noise = (part.reshape(mean.shape) for part in outputs.chunk(2, dim=-1))
        found = normal_gradients(student, log_noise, mean, var)
        return torch.cat([d.reshape(len(y), -1) for d in found], -1), {}


@dataclass(frozen=True)
class MatchNoise(GaussianNoise):
    """KL(teacher ‖ student) between Normals where the student has one variance for all rows."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        mean, var = y.unbind(-1)
        log_noise = self.log_noise(params, outputs)
        per_output = 0.5 * ((var + (mean - outputs.reshape(mean.shape)) ** 2) * torch.exp(-log_noise) + log_noise)
        return per_output.flatten(1).sum(-1) if per_output.ndim > 1 else per_output

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        mean, var = y.unbind(-1)
        by_mean, by_noise = normal_gradients(outputs.reshape(mean.shape), self.log_noise(params, outputs), mean, var)
        return by_mean.reshape(outputs.shape), {LOG_NOISE: by_noise.reshape(len(y), -1).sum(-1)}


@dataclass(frozen=True)
class Distil:
    """How the server trains one student: a network like the clients', with a variance for regression."""

    inference: Inference = Adam(rate=1e-3, epochs=100, batch=100)  # how the student is fitted
    start: Start = at_average  # where it starts; at random where its last layer is new
    wide: bool = True  # for regression: twice the outputs, a variance for every row; False: the clients' own network

    def student_task(self, task: Task) -> Task:
        """The task a student is trained for and predicts with."""
        same = dataclasses.replace(task, prior=Flat(), tilts=())
        match task.likelihood:
            case Softmax():
                return dataclasses.replace(same, likelihood=MatchClasses())
            case GaussianNoise(noise, latent, full) if not self.wide:
                return dataclasses.replace(same, likelihood=MatchNoise(noise, latent, full))
            case Heteroscedastic(latent):
                return dataclasses.replace(same, likelihood=MatchNormals(latent))
        return dataclasses.replace(same, model=widen(task.model), likelihood=MatchNormals())

    def keeps_shape(self, task: Task) -> bool:
        """Whether the student could be a client's model."""
        return not (self.wide and isinstance(task.likelihood, GaussianNoise))

    def student(
        self, task: Task, teacher: Predictive, posteriors: Sequence[Posterior], inputs: Tensor | None, key: Key
    ) -> Point:
        """Fit the student to the teacher on the inputs."""
        if inputs is None:
            raise InputError("Distillation needs unlabelled rows at the server: give inputs=0.2, or set distil=None.")
        own = self.student_task(task)
        p = teacher(inputs)
        targets = p.probs if isinstance(p, Categorical) else torch.stack([p.mean, p.total], -1)
        if not bool(torch.isfinite(targets).all()):
            raise InputError("The teacher's predictions are not finite; look at the clients' posteriors.")
        begin = (self.start if self.keeps_shape(task) else at_random)(own, posteriors, key.fold(0))
        fitted = self.inference(own, begin, Client(Data.of(inputs, targets.to(inputs.dtype)), (), key.fold(1)))
        return centre(fitted, own.like)

    def predictive(self, task: Task, student: Posterior) -> Predictive:
        """The student's predictions; its variance is that of an observation, so nothing is left to add."""
        return self.student_task(task).predictive(student)


def distil_pool(distil: Distil | None, task: Task, state: S, teacher: Predictive, server: Server) -> S:
    """A pooling method's state, with a student for its posterior if there is a distiller."""
    if distil is None:
        return state
    posteriors = state.posteriors  # type: ignore[attr-defined]
    student = distil.student(task, teacher, posteriors, server.inputs, server.key)
    return state._replace(posterior=student)  # type: ignore[attr-defined, no-any-return]


def widen(model: nn.Module) -> nn.Module:
    """The same network with twice as many outputs."""
    copied = copy.deepcopy(model)
    found = [(name, layer) for name, layer in copied.named_modules() if isinstance(layer, nn.Linear)]
    if not found:
        raise InputError("A regression student needs a network that ends in a Linear layer; set distil=None.")
    name, last = found[-1]
    wider = nn.Linear(last.in_features, 2 * last.out_features, last.bias is not None).to(last.weight)
    if not name:
        return wider
    owner, _, attribute = name.rpartition(".")
    setattr(copied.get_submodule(owner), attribute, wider)
    return copied
