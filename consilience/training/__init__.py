"""What every inference trains with: optimisers, gradients, the chain of steps, schedules and augmentation."""

from consilience.training.optimisers import AdamSteps, Descent, Yogi
from consilience.training.schedules import constant, cosine, stepwise

__all__ = ["AdamSteps", "Descent", "Yogi", "constant", "cosine", "stepwise"]
