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

    Args:
        channels: How many there are, in dimension 1 of the inputs.
        eps: Added to the variance.
        momentum: How far each batch moves the running statistics.
        affine: Whether a scale and a shift a channel are learned.
    """

    running_mean: Tensor
    running_var: Tensor
    rows: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.channels = channels
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.weight = None
        self.bias = None
        if affine:
            self.weight = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("rows", torch.ones(0), persistent=False)

    def reset_parameters(self) -> None:
        """Set scale and running variance to 1, shift and running mean to 0."""
        for tensor, value in ((self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0), (self.running_var, 1.0)):
            if tensor is not None:
                nn.init.constant_(tensor, value)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; while training, by the batch, whose statistics move the running ones.

        Args:
            x: Inputs [N, C, …].

        Returns:
            Outputs of the same shape.
        """
        all_count = self.rows.numel() == 0 and x.numel() > x.shape[1]  # torch refuses one number a channel
        if not self.training or all_count:
            moving = (self.running_mean, self.running_var)
            return batch_norm(x, *moving, self.weight, self.bias, self.training, self.momentum, self.eps)
        return self._normalise_counted(x)

    def _normalise_counted(self, x: Tensor) -> Tensor:
        """Normalise by the rows that count."""
        rows = self.rows
        if not rows.numel():
            rows = x.new_ones(len(x))
        counts = (rows > 0).to(x).reshape(-1, *[1] * (x.ndim - 1))
        across = [d for d in range(x.ndim) if d != 1]
        wide = (1, -1, *[1] * (x.ndim - 2))
        number = counts.sum() * (x.shape.numel() // (x.shape[0] * x.shape[1]))
        mean = (counts * x).sum(across) / number.clamp(min=1)
        away = x - mean.reshape(wide)
        var = (counts * away**2).sum(across) / number.clamp(min=1)
        unbiased = torch.where(number > 1, var * number / (number - 1).clamp(min=1), self.running_var)
        self._move(mean.detach(), unbiased.detach())
        out = away * (var + self.eps).rsqrt().reshape(wide)
        if self.weight is None or self.bias is None:
            return out
        return out * self.weight.reshape(wide) + self.bias.reshape(wide)

    def _move(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards a batch's."""
        for name, new in (("running_mean", mean), ("running_var", var)):
            old = getattr(self, name)
            average = (old + self.momentum * (new - old)).detach()
            if tree.under_vmap():
                setattr(self, name, average)  # nothing may be written into what came from outside a vmap
            else:
                old.copy_(average)

    def extra_repr(self) -> str:
        """Return the settings as a printed network shows them."""
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"


def statistics(model: nn.Module) -> list[str]:
    """List the running statistics of a network.

    Returns:
        The names of their buffers.
    """
    layers = {name for name, layer in model.named_modules() if isinstance(layer, BatchNorm)}
    if not layers:
        return []
    return [n for n, _ in model.named_buffers() if n.rpartition(".")[0] in layers and not n.endswith("rows")]
