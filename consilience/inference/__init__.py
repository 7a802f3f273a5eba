"""How a client infers: target, start, data → posterior."""

from consilience.inference.chain import Inference
from consilience.inference.point import SGD, Adam
from consilience.inference.schedule import constant, cosine, stepwise
from consilience.inference.sghmc import CyclicalSGHMC
from consilience.inference.sgld import SGLD
from consilience.inference.swa import SWA

__all__ = ["SGD", "SGLD", "SWA", "Adam", "CyclicalSGHMC", "Inference", "constant", "cosine", "stepwise"]
