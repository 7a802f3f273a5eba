"""A network of your own: any nn.Module that maps a row to one logit a class."""

import torch
from torch import nn

import consilience as co
from consilience.distributions.prior import Isotropic


class Attentive(nn.Module):
    """Weighs the inputs before it looks at them."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(features, features)
        self.hidden = nn.Linear(features, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(x * torch.sigmoid(self.gate(x)))))


sites = co.datasets.digits().split(co.splits.dirichlet(0.3), sites=5, seed=0)
task = co.classification(Attentive(sites.features, sites.classes), prior=Isotropic(var=0.5))

result = co.run(co.methods.Mixture(co.CyclicalSGHMC(epochs=20)), task, sites, seed=0)
print({name: round(value, 3) for name, value in result.metrics.items()})

# A class of your own is handed in again when a saved run is loaded.
result.save("own_model")
again = co.load("own_model", task=task)
assert torch.equal(again.predict(sites.all_test.x).probs, result.predict(sites.all_test.x).probs)
