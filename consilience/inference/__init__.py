"""How a client infers: target, start, data → posterior."""

from consilience.inference.laplace import Laplace, fisher, ggn
from consilience.inference.newton import Newton
from consilience.inference.point import SGD, Adam
from consilience.inference.sghmc import CyclicalSGHMC
from consilience.inference.sgld import SGLD
from consilience.inference.swa import SWA
from consilience.inference.swag import SWAG
from consilience.inference.vi import MeanField
from consilience.training.augmentation import CropAndFlip
from consilience.training.chain import Inference
from consilience.training.schedules import constant, cosine, stepwise

__all__ = ["SGD", "SGLD", "SWA", "SWAG", "Adam", "CropAndFlip", "CyclicalSGHMC", "Inference", "Laplace", "MeanField"]
__all__ += ["Newton", "constant", "cosine", "fisher", "ggn", "stepwise"]
