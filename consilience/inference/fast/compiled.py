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

from consilience.inference.fast.stacked import rebatch, unbatch

Function: TypeAlias = Callable[..., Tensor]

WORTH = 200_000  # steps that repay compiling: it takes a minute on two cores and saves 0.3 ms a step of five clients
_cache: WeakKeyDictionary[nn.Module, dict[Any, Function]] = WeakKeyDictionary()  # an entry dies with its network


def has_compiler() -> bool:
    """Whether a C++ compiler is there, which torch needs for the CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++"))


def worthwhile(steps: int) -> bool:
    """Whether compiling repays itself: a compiler is present, and at least `WORTH` steps lie ahead.

    Args:
        steps: how many lie ahead, over all rounds

    Returns:
        Whether to compile.
    """
    return steps >= WORTH and has_compiler()


def compile_step(model: nn.Module, about: Any, f: Function) -> Function:
    """F for tensors that a vmap has batched, compiled once for a network and whatever else decides f.

    Args:
        model: the network; what was compiled is forgotten with it
        about: what else decides f, hashable
        f: a function of tensors, as it is for one client

    Returns:
        The same function, to be called inside a vmap; uncompiled where compiling fails.
    """
    known = _cache.setdefault(model, {})

    def run_batched(*tensors: Tensor) -> Tensor:
        plain, dims = zip(*(unbatch(tensor) for tensor in tensors), strict=True)
        with temporarily_pop_interpreter_stack():
            batched = torch.func.vmap(f, in_dims=dims)
            if (about, dims) not in known:
                known[about, dims] = torch.compile(batched, dynamic=False)
            try:
                values = known[about, dims](*plain)
            except Exception as error:  # whatever goes wrong in a compiler, the steps can go on without it
                warnings.warn(
                    f"Steps could not be compiled ({type(error).__name__}); continuing without compilation.",
                    stacklevel=2,
                )
                known[about, dims] = batched
                values = batched(*plain)
        return rebatch(values)

    return run_batched
