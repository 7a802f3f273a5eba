"""One student from any teacher, on unlabelled inputs. The teacher predicts once; the student is ordinary inference.

Change the target, not the optimiser: the student's task has the teacher's distributions for targets and a likelihood
whose negative log is the divergence between them, so every optimiser works as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from consilience.data.sites import Data
from consilience.distributions.likelihood import (
    LOG_NOISE,
    GaussianNoise,
    Heteroscedastic,
    Softmax,
    bound,
    normal_gradients,
)
from consilience.distributions.posterior import Point, Posterior, average, centre, members
from consilience.distributions.predictive import Categorical, Distribution, Normal, Predictive, sum_outputs
from consilience.distributions.prior import Flat
from consilience.distributions.softmax import log_softmax, softmax
from consilience.errors import Diverged, InputError
from consilience.inference import Adam, Inference
from consilience.key import Key
from consilience.messages import Client, Server
from consilience.task import Task
from consilience.tree import Params

S = TypeVar("S")
Start: TypeAlias = Callable[[Task, Sequence[Posterior], Key], Point]


def at_random(task: Task, posteriors: Sequence[Posterior], key: Key) -> Point:
    """Start from fresh weights.

    Returns:
        Where the student starts.
    """
    return task.init(key)


def at_client(task: Task, posteriors: Sequence[Posterior], key: Key) -> Point:
    """Start from the last sample of the client with the lowest number; from fresh weights where clients send none.

    Returns:
        Where the student starts.
    """
    if not posteriors:
        return at_random(task, posteriors, key)
    return Point(members(posteriors[0], key, 1, task.like)[-1])


def at_average(task: Task, posteriors: Sequence[Posterior], key: Key) -> Point:
    """Start from the mean of the clients' centres; from fresh weights where clients send none.

    Returns:
        Where the student starts.
    """
    if not posteriors:
        return at_random(task, posteriors, key)
    return average([centre(p, task.like) for p in posteriors], torch.ones(len(posteriors)))


@dataclass(frozen=True, eq=False)
class MatchClasses(Softmax):
    """KL(teacher ‖ student) over classes, up to the teacher's entropy; targets are the teacher's probabilities."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate the cross-entropy with the teacher's probabilities; see `Likelihood.nll`."""
        return -(y * log_softmax(outputs)).sum(-1)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`; see `Softmax.gradients`."""
        return softmax(outputs) * y.sum(-1, keepdim=True) - y, {}


@dataclass(frozen=True)
class MatchNormals(Heteroscedastic):
    """KL(teacher ‖ student) between Normals, up to the teacher's entropy; targets are (mean, variance of y)."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate the divergence from the teacher's Normal; see `Likelihood.nll`."""
        mean, var = y.unbind(-1)
        student, log_noise = (part.reshape(mean.shape) for part in outputs.chunk(2, dim=-1))
        log_noise = bound(log_noise)
        return sum_outputs(0.5 * ((var + (mean - student) ** 2) * torch.exp(-log_noise) + log_noise))

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`; see `Heteroscedastic.gradients`."""
        mean, var = y.unbind(-1)
        student, log_noise = (part.reshape(mean.shape) for part in outputs.chunk(2, dim=-1))
        gradients = normal_gradients(student, bound(log_noise), mean, var)
        return torch.cat([d.reshape(len(y), -1) for d in gradients], -1), {}


@dataclass(frozen=True)
class SeekNormals(MatchNormals):
    """KL(student ‖ teacher) between Normals, up to a constant, as the program of Hasan et al. 2024 has it."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate the divergence to the teacher's Normal; see `Likelihood.nll`."""
        mean, var = y.unbind(-1)
        student, log_noise = (part.reshape(mean.shape) for part in outputs.chunk(2, dim=-1))
        log_noise = bound(log_noise)
        return sum_outputs(0.5 * ((log_noise.exp() + (mean - student) ** 2) / var - log_noise))

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`; see `Heteroscedastic.gradients`."""
        mean, var = y.unbind(-1)
        student, log_noise = (part.reshape(mean.shape) for part in outputs.chunk(2, dim=-1))
        gradients = (student - mean) / var, 0.5 * (bound(log_noise).exp() / var - 1)
        return torch.cat([d.reshape(len(y), -1) for d in gradients], -1), {}


@dataclass(frozen=True)
class MatchNoise(GaussianNoise):
    """KL(teacher ‖ student) between Normals where the student has one variance for all rows."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate the divergence from the teacher's Normal; see `Likelihood.nll`."""
        mean, var = y.unbind(-1)
        student = outputs.reshape(mean.shape)
        log_noise = self.log_noise(params, outputs)
        return sum_outputs(0.5 * ((var + (mean - student) ** 2) * torch.exp(-log_noise) + log_noise))

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`; see `GaussianNoise.gradients`."""
        mean, var = y.unbind(-1)
        by_mean, by_noise = normal_gradients(outputs.reshape(mean.shape), self.log_noise(params, outputs), mean, var)
        return by_mean.reshape(outputs.shape), {LOG_NOISE: by_noise.reshape(len(y), -1).sum(-1)}


@dataclass(frozen=True)
class Distil:
    """How the server trains one student: a network like the clients', with a variance for regression.

    Attributes:
        inference: How the student is fitted.
        start: Where it starts; at random where its last layer is new.
        wide: For regression: twice the outputs, a variance for every row; False: the clients' own network.
        reverse: For a student with a variance for every row: KL(student ‖ teacher) in place of KL(teacher ‖ student).

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear", inputs=20)
        >>> student = co.aggregation.Distil(co.Adam(rate=0.01, epochs=5))
        >>> type(co.run(co.methods.Mixture(distil=student), problem).state.posterior).__name__
        'Point'
    """

    inference: Inference = Adam(rate=1e-3, epochs=100, batch=100)
    start: Start = at_average
    wide: bool = True
    reverse: bool = field(default=False, metadata={"added": True})

    def student_task(self, task: Task) -> Task:
        """Make the task that a student is trained for and predicts with.

        Returns:
            The student's task, whose targets are the teacher's distributions.

        Raises:
            InputError: If the divergence is reversed for a student without a variance for every row.
        """
        same = dataclasses.replace(task, prior=Flat(), tilts=())
        normals = MatchNormals
        if self.reverse:
            normals = SeekNormals
            if isinstance(task.likelihood, Softmax) or (isinstance(task.likelihood, GaussianNoise) and not self.wide):
                raise InputError("reverse=True is for a regression's student with wide=True: set reverse=False.")
        match task.likelihood:
            case Softmax():
                return dataclasses.replace(same, likelihood=MatchClasses())
            case GaussianNoise(noise, latent, full) if not self.wide:
                return dataclasses.replace(same, likelihood=MatchNoise(noise, latent, full))
            case Heteroscedastic(latent):
                return dataclasses.replace(same, likelihood=normals(latent))
        return dataclasses.replace(same, model=widen(task.model), likelihood=normals())

    def keeps_shape(self, task: Task) -> bool:
        """Say whether the student could be a client's model.

        Returns:
            False where the student has outputs that the clients' networks lack.
        """
        return not (self.wide and isinstance(task.likelihood, GaussianNoise))

    def student(
        self, task: Task, teacher: Predictive, posteriors: Sequence[Posterior], inputs: Tensor | None, key: Key
    ) -> Point:
        """Fit the student to the teacher.

        Args:
            teacher: What the student is to predict.
            posteriors: The clients' posteriors, from which it may start.
            inputs: The server's unlabelled rows.

        Returns:
            The student's weights.

        Raises:
            InputError: Without inputs.
            Diverged: The teacher's predictions are not finite.
        """
        if inputs is None:
            raise InputError("Distillation needs unlabelled rows at the server: give inputs=0.2, or set distil=None.")
        student_task = self.student_task(task)
        targets = _targets(teacher(inputs))
        if not bool(torch.isfinite(targets).all()):
            raise Diverged(
                "The teacher's predictions are not finite, so that nothing can be distilled: lower the sites' learning "
                "rate, or find the site whose model diverged with local_only."
            )
        start = self.start
        if not self.keeps_shape(task):
            start = at_random
        point = start(student_task, posteriors, key.fold(0))
        rows = Client(Data.of(inputs, targets.to(inputs.dtype)), (), key.fold(1))
        return centre(self.inference(student_task, point, rows), student_task.like)

    def predictive(self, task: Task, student: Posterior) -> Predictive:
        """Predict with the student; its variance is that of an observation, so nothing is left to add.

        Returns:
            A function from inputs to their predictive distribution.
        """
        return self.student_task(task).predictive(student)


def distil_pool(distil: Distil | None, task: Task, state: S, teacher: Predictive, server: Server) -> S:
    """Put a student in the place of a pooling method's posterior.

    Args:
        distil: How the student is trained; None leaves the state as it is.
        state: The method's state, with `posterior` and `posteriors`.
        server: What the server sees.

    Returns:
        The state, with the student for its posterior if there is one.
    """
    if distil is None:
        return state
    posteriors = state.posteriors  # type: ignore[attr-defined]
    student = distil.student(task, teacher, posteriors, server.inputs, server.key)
    return state._replace(posterior=student)  # type: ignore[attr-defined, no-any-return]


def _targets(p: Distribution) -> Tensor:
    """A teacher's distributions as targets: probabilities, or means and variances of y in a last dimension."""
    if isinstance(p, Categorical):
        return p.probs
    if not isinstance(p, Normal):
        raise InputError("A student learns classes or numbers, not counts or survival times: set distil=None.")
    return torch.stack([p.mean, p.total], -1)


def widen(model: nn.Module) -> nn.Module:
    """Copy a network with twice as many outputs.

    Args:
        model: A network that ends in a linear layer.

    Returns:
        The copy, whose last layer is new.

    Raises:
        InputError: If it has no linear layer.
    """
    clone = copy.deepcopy(model)
    layers = [(name, layer) for name, layer in clone.named_modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise InputError("A regression student needs a network that ends in a Linear layer; set distil=None.")
    name, last = layers[-1]
    wider = nn.Linear(last.in_features, 2 * last.out_features, last.bias is not None).to(last.weight)
    if not name:
        return wider
    owner, _, attribute = name.rpartition(".")
    setattr(clone.get_submodule(owner), attribute, wider)
    return clone
