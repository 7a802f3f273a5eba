"""Normalisation by batch whose statistics leave padding out, so that clients of unequal size agree on every engine."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from consilience import tree


class BatchNorm(nn.Module):
    """Ioffe and Szegedy, ICML 2015, over the rows that count: those whose weight in `rows` is above 0.

    `rows` is handed over by every training step; empty, all rows count, and torch's own kernel is used. The running
    statistics are part of what moves between clients and server.
    """

    running_mean: Tensor
    running_var: Tensor
    rows: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum, self.affine = channels, eps, momentum, affine
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("rows", torch.ones(0), persistent=False)

    def reset_parameters(self) -> None:
        for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0), (self.running_var, 1.0)):
            if tensor is not None:
                nn.init.constant_(tensor, value)

    def forward(self, x: Tensor) -> Tensor:
        all_count = self.rows.numel() == 0 and x.numel() > x.shape[1]  # torch refuses one number a channel
        if not self.training or all_count:
            moving = (self.running_mean, self.running_var)
            return batch_norm(x, *moving, self.weight, self.bias, self.training, self.momentum, self.eps)
        return self.weighed(x)

    def weighed(self, x: Tensor) -> Tensor:
        """The same by the weights of the rows."""
        rows = self.rows if self.rows.numel() else x.new_ones(len(x))
        counts = (rows > 0).to(x).reshape(-1, *[1] * (x.ndim - 1))
        across, wide = [d for d in range(x.ndim) if d != 1], (1, -1, *[1] * (x.ndim - 2))
        number = counts.sum() * (x.shape.numel() // (x.shape[0] * x.shape[1]))
        mean = (counts * x).sum(across) / number.clamp(min=1)
        away = x - mean.reshape(wide)
        var = (counts * away**2).sum(across) / number.clamp(min=1)
        unbiased = torch.where(number > 1, var * number / (number - 1).clamp(min=1), self.running_var)
        self.move(mean.detach(), unbiased.detach())
        out = away * (var + self.eps).rsqrt().reshape(wide)
        if self.weight is None or self.bias is None:
            return out
        return out * self.weight.reshape(wide) + self.bias.reshape(wide)

    def move(self, mean: Tensor, var: Tensor) -> None:
        for name, new in (("running_mean", mean), ("running_var", var)):
            old = getattr(self, name)
            moved = (old + self.momentum * (new - old)).detach()
            if tree.under_vmap():
                setattr(self, name, moved)  # nothing may be written into what came from outside a vmap
            else:
                old.copy_(moved)

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"


def statistics(model: nn.Module) -> list[str]:
    """The names of all running statistics in a network."""
    layers = {name for name, layer in model.named_modules() if isinstance(layer, BatchNorm)}
    named = model.named_buffers() if layers else ()
    return [n for n, _ in named if n.rpartition(".")[0] in layers and not n.endswith("rows")]
