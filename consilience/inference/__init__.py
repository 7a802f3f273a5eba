"""How a client infers: target, start, data → posterior.

- Points: `SGD`, `Adam`, `SWA`, `Newton`; `DPSGD`, with a guarantee of differential privacy for every row.
- Samples: `Sampler`, which chooses `PreconditionedSGHMC` or `CyclicalSGHMC` by the model; `SGLD`, `HMC`.
- Gaussians: `Laplace` (with `fisher` or `ggn`), `VariationalGaussian`, `SWAG`, `MeanField`;
  `MultipleImputation` of gaps around one of them.
- Rows that stand for others: `BPCfKL`, `Distillation`.
- Parts of them: `CropAndFlip`, and the schedules `constant`, `cosine`, `stepwise`.

Optimisers (`AdamSteps`, `Descent`, `Yogi`) are in `optimisers`, the chain of steps that all share in `chain`; what only
makes them fast is in `fast`.
"""

from consilience.inference.augmentation import CropAndFlip
from consilience.inference.averaged import VariationalGaussian
from consilience.inference.chain import Inference
from consilience.inference.coreset import BPCfKL
from consilience.inference.dpsgd import DPSGD
from consilience.inference.hmc import HMC
from consilience.inference.imputed import MultipleImputation
from consilience.inference.laplace import Laplace, fisher, ggn
from consilience.inference.newton import Newton
from consilience.inference.optimisers import AdamSteps, Descent, Yogi
from consilience.inference.point import SGD, Adam
from consilience.inference.preconditioned import PreconditionedSGHMC
from consilience.inference.sampler import Sampler
from consilience.inference.schedules import constant, cosine, stepwise
from consilience.inference.sghmc import CyclicalSGHMC
from consilience.inference.sgld import SGLD
from consilience.inference.swa import SWA
from consilience.inference.swag import SWAG
from consilience.inference.unrolled import Distillation
from consilience.inference.vi import MeanField

__all__ = [
    "DPSGD",
    "HMC",
    "SGD",
    "SGLD",
    "SWA",
    "SWAG",
    "Adam",
    "AdamSteps",
    "BPCfKL",
    "CropAndFlip",
    "CyclicalSGHMC",
    "Descent",
    "Distillation",
    "Inference",
    "Laplace",
    "MeanField",
    "MultipleImputation",
    "Newton",
    "PreconditionedSGHMC",
    "Sampler",
    "VariationalGaussian",
    "Yogi",
    "constant",
    "cosine",
    "fisher",
    "ggn",
    "stepwise",
]
