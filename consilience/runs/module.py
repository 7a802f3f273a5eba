"""A model by itself: a plain `nn.Module` from rows in their own units to probabilities, and its export."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from consilience import tree
from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Normal
from consilience.distributions.survival import Survival
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.runs.result import Result

FORMATS = ("onnx", "pt2")  # as files end


class Predictor(nn.Module):
    """Rows in the units of the data to probabilities [N, C], or to mean and variance [N, 2] of numbers.

    It needs no rows, no folder and nothing of a run. Draws of weights are made once, when it is made.

    Args:
        result: The run whose model it is.
        site: Whose model, where sites have models of their own; None: the common model, which a newcomer gets.

    Raises:
        InputError: The method has a model for each site and none for all, or the site is unknown.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, result: Result, site: str | None = None) -> None:
        super().__init__()
        sites = result.sites
        shift = sites.feature_shift
        scale = sites.feature_scale
        if shift is None or scale is None:
            shift = torch.zeros(())
            scale = torch.ones(())
        self.register_buffer("shift", shift.double())
        self.register_buffer("scale", scale.double())
        self._target = (sites.target_scale, sites.target_shift)
        self._dtype = next(iter(result.task.like.values())).dtype
        if sites.holds_tokens:
            self._dtype = torch.int64
        self._predict = result.model(site)
        features = sites.features
        shape = (features,) if isinstance(features, int) else tuple(features)
        with torch.no_grad():
            self(torch.zeros(2, *shape, dtype=torch.float64))  # what is drawn once is drawn now
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Predict.

        Args:
            x: Rows in the units the data came in, [N, …].

        Returns:
            Probabilities [N, C]; for numbers and counts, mean and variance of an observation in the target's units, for
            times to an event those of the log-hazard, [N, 2].
        """
        p = self._predict(((x.double() - self.shift) / self.scale).to(self._dtype))
        if isinstance(p, Categorical):
            return p.log_probs.softmax(-1)
        if isinstance(p, Counts):
            return torch.stack([p.mean, p.total], -1)
        if isinstance(p, Survival):
            return torch.stack([p.risk, p.var], -1)
        assert isinstance(p, Normal)
        scale, shift = self._target
        return torch.stack([p.mean * scale + shift, p.total * scale**2], -1)


def export_module(result: Result, path: str | Path, site: str | None = None) -> Path:
    """Write a run's model as a file that other programs read.

    Args:
        path: The file; its ending is the format: .onnx, or .pt2 for `torch.export`.
        site: Whose model, where sites have models of their own; None: the common model, which a newcomer gets.

    Raises:
        InputError: The format is unknown, or what it needs is not installed.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise InputError(f"'{path.name}' names no format: end it with .onnx, or with .pt2 for torch.export.")
    features = result.sites.features
    shape = (features,) if isinstance(features, int) else tuple(features)
    rows = torch.zeros(3, *shape, dtype=torch.float64)
    program = exported(Predictor(result, site), rows)
    if kind == "pt2":
        torch.export.save(program, path)
        return path
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("ONNX files need onnx and onnxscript: run `pip install 'consilience[onnx]'`.") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it says at length what is not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names: dict[str, Any] = {"input_names": ["rows"], "output_names": ["prediction"]}
        written: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    written.save(str(path))
    return path


def exported(module: nn.Module, rows: Tensor) -> torch.export.ExportedProgram:
    """Trace a module for any number of rows.

    Args:
        rows: Some rows, at least two.

    Returns:
        The program.
    """
    with torch.no_grad(), tree.exporting():
        graph = make_fx(module, tracing_mode="symbolic", _allow_non_fake_inputs=True)(rows)
    graph.graph.eliminate_dead_code()
    for node in [node for node in graph.graph.nodes if node.op == "get_attr" and not node.users]:
        graph.graph.erase_node(node)  # a constant that nothing needs stops torch.export
    graph.recompile()
    with torch.no_grad():
        return torch.export.export(graph, (rows,), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},))
