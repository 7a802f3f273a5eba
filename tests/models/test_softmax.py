"""Softmax over few classes and many against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from consilience.distributions.softmax import log_softmax, softmax
from consilience.key import Key


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 62])  # fewer and more than a register holds
@pytest.mark.parametrize(("ours", "torchs"), [(softmax, torch.softmax), (log_softmax, torch.log_softmax)])
def test_softmax_is_torchs(classes: int, ours: Callable[..., Tensor], torchs: Callable[..., Tensor]) -> None:
    logits = 50 * Key(classes).normal((3, 7, classes)).double()
    logits[0, 0, 0] = -torch.inf
    wanted = torchs(logits, -1)
    torch.testing.assert_close(ours(logits), wanted, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(torch.func.vmap(ours)(logits), wanted, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(ours(logits[0, 1]), wanted[0, 1], atol=1e-13, rtol=1e-13)
