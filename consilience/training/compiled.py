"""Compiled steps for many clients at once: a function met inside a vmap, run outside it as compile(vmap(f)), put back.

The uncompiled step is the definition of correct; a compiled one agrees to rounding. Compiling takes up to a minute
the first time, so `worthwhile` asks whether enough steps lie ahead.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

Function: TypeAlias = Callable[..., Tensor]

WORTH = 200_000  # steps that repay compiling: it takes a minute on two cores and saves 0.3 ms a step of five clients
_functorch: Any = torch._C._functorch
_made: WeakKeyDictionary[nn.Module, dict[Any, Function]] = WeakKeyDictionary()  # dies with the network


def compiler() -> bool:
    """Whether a C++ compiler is there, which torch needs for the CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


def worthwhile(steps: int) -> bool:
    """The rule: a compiler is present, and at least `WORTH` steps lie ahead."""
    return steps >= WORTH and compiler()


def compile_step(model: nn.Module, about: Any, f: Function) -> Function:
    """f for tensors that a vmap has batched; compiled once for a network and what else (`about`) decides f."""
    known = _made.setdefault(model, {})

    def together(*tensors: Tensor) -> Tensor:
        level = _functorch.peek_interpreter_stack().level()
        dims = tuple(_functorch.maybe_get_bdim(t) if _functorch.is_batchedtensor(t) else None for t in tensors)
        bare = [_functorch.get_unwrapped(t) if d is not None else t for t, d in zip(tensors, dims, strict=True)]
        with temporarily_pop_interpreter_stack():
            plain = torch.func.vmap(f, in_dims=dims)
            if (about, dims) not in known:
                known[about, dims] = torch.compile(plain, dynamic=False)
            try:
                out = known[about, dims](*bare)
            except Exception as error:  # whatever goes wrong in a compiler, the steps can go on without it
                warnings.warn(
                    f"Steps could not be compiled ({type(error).__name__}); going on uncompiled.", stacklevel=2
                )
                known[about, dims] = plain
                out = plain(*bare)
        found: Tensor = _functorch._add_batch_dim(out, 0, level)
        return found

    return together
