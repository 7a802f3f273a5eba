"""FedBE's rivals, which are settings of it.  Chen and Chao, ICLR 2021, §5.1."""

from __future__ import annotations

from consilience.aggregation.distil import Distil
from consilience.aggregation.ensembles import Ensemble
from consilience.inference import SGD, Inference
from consilience.method import Method
from consilience.methods.fedavg import FedAvg
from consilience.methods.fedbe import FedBE


def v_distillation(inner: Method | None = None, inference: Inference | None = None) -> FedBE:
    """Distil the clients' models alone, with squared pseudo-labels (as FedBE) and SGD, in every round.

    The paper's 20 epochs and batch of 128; its step size is not printed, 1e-3 is where SWA's steps begin.

    Args:
        inner: How clients train and the server averages; federated averaging if None.
        inference: How the server trains the student; as in the paper if None.

    Returns:
        The method.
    """
    training = inference or SGD(rate=1e-3, momentum=0.9, epochs=20, batch=128)
    ensemble = Ensemble(samples=0, average=False, clients=True)
    return FedBE(inner or FedAvg(), ensemble, distil=Distil(training, wide=False))


def one_ensemble(inference: Inference | None = None) -> FedBE:
    """Average the predictions of the clients' models; meant for one round of long training (200 epochs).

    Args:
        inference: How a client trains; by 200 epochs of SGD if None.

    Returns:
        The method.
    """
    training = inference or SGD(rate=0.01, epochs=200, batch=40)
    ensemble = Ensemble(samples=0, average=False, clients=True)
    return FedBE(FedAvg(training), ensemble, distil=None)
