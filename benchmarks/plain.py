"""The protocols as plain research code spends its time.

One model after another; rows through a DataLoader; the teacher's models evaluated again for every batch of every epoch
of distillation and of β's ten epochs of Adam; every rule evaluates its own models on the test rows, batch by batch.
No slower than that on purpose: rows are tensors in memory already, and nothing is logged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

import consilience as co
from benchmarks.problems import BATCH, DECAY, FRICTION, Problem
from consilience.data import Data
from consilience.methods.fedpa import delta

Models: TypeAlias = list[nn.Module]
Outcome: TypeAlias = tuple[Tensor, ...]  # (log-probabilities,), or (mean, variance)
BETA_EPOCHS, BETA_RATE, DRAWS, RHO = 10, 1e-2, 10, 0.4


def protocol(p: Problem, threads: int) -> dict[str, float]:
    """Everything, from training to the NLL of every rule on the test rows."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = co.models.mlp(p.sites.features, p.sites.classes)
    clients = [sample(copy.deepcopy(network), part, p) for part in p.sites.train]
    assert p.sites.calibration is not None
    server = loader(p.sites.calibration, shuffle=True)
    beta = tune(clients, server, p)
    rules: dict[str, Callable[[Tensor], Outcome]] = {
        "mixture": lambda x: pools(clients, x, p)[1],
        "product": lambda x: pools(clients, x, p)[0],
        "β": lambda x: interpolate(beta, *pools(clients, x, p)),
        "EP-MCMC": partial(alone, multiply(network, clients), p=p),
        "FedPA": partial(alone, [average(network, clients)], p=p),
    }
    student = taught(rules["β"], clients, server, p)
    rules["distilled β"] = partial(predict, student, p=p)
    for k, models in enumerate(clients):
        rules[f"client {k} alone"] = partial(alone, models, p=p)
    return {name: test_score(rule, p) for name, rule in rules.items()}


def loader(rows: Data, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(rows.x, rows.y), batch_size=BATCH, shuffle=shuffle)


def sample(model: nn.Module, rows: Data, p: Problem) -> Models:
    """One client's cyclical SGHMC."""
    batches, kept = loader(rows, shuffle=True), Models()
    optimiser = torch.optim.SGD(model.parameters(), lr=p.rate, momentum=1 - FRICTION, weight_decay=DECAY)
    total, length = p.epochs * len(batches), math.ceil(p.epochs / p.cycles)
    for epoch in range(p.epochs):
        noisy = epoch % length >= length - p.samples
        for i, (x, y) in enumerate(batches):
            step = 0.5 * p.rate * (math.cos(math.pi * ((epoch * len(batches) + i) * p.cycles / total % 1)) + 1)
            optimiser.param_groups[0]["lr"] = step
            optimiser.zero_grad()
            out = model(x)
            loss = functional.cross_entropy(out, y) if p.sites.classes else functional.mse_loss(out.squeeze(-1), y)
            loss.backward()
            optimiser.step()
            if noisy:
                with torch.no_grad():
                    for weight in model.parameters():
                        scale = math.sqrt(2 * step * FRICTION * p.temperature / len(rows.x))
                        weight.add_(scale * torch.randn_like(weight))
        if noisy:
            kept.append(copy.deepcopy(model))
    return kept[-p.keep :]


def alone(models: Models, x: Tensor, p: Problem) -> Outcome:
    """The average over one client's models."""
    with torch.no_grad():
        if p.sites.classes:
            return (torch.stack([functional.softmax(m(x), -1) for m in models]).mean(0).log(),)
        outputs = torch.stack([m(x).squeeze(-1) for m in models])
        return outputs.mean(0), 2.0 + outputs.var(0, correction=0)


def pools(clients: list[Models], x: Tensor, p: Problem) -> tuple[Outcome, Outcome]:
    """Product and mixture; every model of every client is evaluated."""
    parts = [torch.stack(leaves) for leaves in zip(*(alone(models, x, p) for models in clients), strict=True)]
    if p.sites.classes:
        return (functional.log_softmax(parts[0].sum(0), -1),), (parts[0].exp().mean(0).log(),)
    means, variances = parts
    precision, mean = (1 / variances).sum(0), means.mean(0)
    product = ((means / variances).sum(0) / precision, 1 / precision)
    return product, (mean, (variances + (means - mean) ** 2).mean(0))


def interpolate(beta: Tensor, product: Outcome, mixture: Outcome) -> Outcome:
    if len(product) == 1:
        return (functional.log_softmax(beta * product[0] + (1 - beta) * mixture[0], -1),)
    precision = beta / product[1] + (1 - beta) / mixture[1]
    mean = (beta * product[0] / product[1] + (1 - beta) * mixture[0] / mixture[1]) / precision
    return mean, 1 / precision


def loss_of(outcome: Outcome, y: Tensor) -> Tensor:
    """The mean negative log-likelihood."""
    if len(outcome) == 1:
        return functional.nll_loss(outcome[0], y)
    mean, var = outcome
    return 0.5 * ((y - mean) ** 2 / var + var.log() + math.log(2 * math.pi)).mean()


def tune(clients: list[Models], server: DataLoader[tuple[Tensor, ...]], p: Problem) -> Tensor:
    beta = torch.tensor(0.5, requires_grad=True)
    optimiser = torch.optim.Adam([beta], lr=BETA_RATE)
    for _ in range(BETA_EPOCHS):
        for x, y in server:
            optimiser.zero_grad()
            loss_of(interpolate(beta, *pools(clients, x, p)), y).backward()
            optimiser.step()
    return beta.detach().clamp(0, 1)


def predict(student: nn.Module, x: Tensor, p: Problem) -> Outcome:
    out = student(x)
    if p.sites.classes:
        return (functional.log_softmax(out, -1),)
    return out[:, 0], out[:, 1].exp()


def taught(
    teacher: Callable[[Tensor], Outcome], clients: list[Models], server: DataLoader[tuple[Tensor, ...]], p: Problem
) -> nn.Module:
    """The student: KL from the teacher, which is asked again for every batch."""
    student = copy.deepcopy(clients[0][-1]) if p.sites.classes else co.models.mlp(p.sites.features, 2)
    optimiser = torch.optim.Adam(student.parameters(), lr=p.distil_rate)
    for _ in range(p.distil_epochs):
        for x, _ in server:
            with torch.no_grad():
                target = teacher(x)
            optimiser.zero_grad()
            answer = predict(student, x, p)
            if p.sites.classes:
                loss = functional.kl_div(answer[0], target[0], reduction="batchmean", log_target=True)
            else:
                loss = 0.5 * ((target[1] + (target[0] - answer[0]) ** 2) / answer[1] + answer[1].log()).mean()
            loss.backward()
            optimiser.step()
    return student


def multiply(network: nn.Module, clients: list[Models]) -> Models:
    """EP-MCMC: draws from the product of diagonal Gaussians."""
    vectors = [torch.stack([parameters_to_vector(m.parameters()).detach() for m in models]) for models in clients]
    precisions = [1 / (v.var(0) + 1e-8) for v in vectors]
    precision = torch.stack(precisions).sum(0)
    mean = torch.stack([w * v.mean(0) for w, v in zip(precisions, vectors, strict=True)]).sum(0) / precision
    return [fill(network, mean + torch.randn_like(mean) / precision.sqrt()) for _ in range(DRAWS)]


def average(network: nn.Module, clients: list[Models]) -> nn.Module:
    """FedPA in one round; its delta costs milliseconds however it is computed."""
    begin = parameters_to_vector(network.parameters()).detach()
    vectors = [torch.stack([parameters_to_vector(m.parameters()).detach() for m in models]) for models in clients]
    return fill(network, begin - torch.stack([delta(begin, v, RHO) for v in vectors]).mean(0))


def fill(network: nn.Module, vector: Tensor) -> nn.Module:
    model = copy.deepcopy(network)
    vector_to_parameters(vector, model.parameters())
    return model


def test_score(rule: Callable[[Tensor], Outcome], p: Problem) -> float:
    """The NLL per test row."""
    total = 0.0
    with torch.no_grad():
        for x, y in loader(p.test, shuffle=False):
            total += float(loss_of(rule(x), y)) * len(y)
    return total / len(p.test.y)
