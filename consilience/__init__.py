"""Bayesian federated learning: private sites infer, one server pools, and the probabilities can be trusted."""

from consilience.data.arrays import from_arrays
from consilience.data.dataset import Dataset
from consilience.data.inputs import inputs_from
from consilience.data.sites import Data, Sites
from consilience.data.tables import from_csv
from consilience.datasets import load as dataset
from consilience.datasets.synthetic import digits, linear_gaussian, moons, sine, swiss_roll
from consilience.engines import Parallel, Sequential, Turn, Vectorised
from consilience.engines.participation import Participation
from consilience.errors import Diverged, InputError
from consilience.inference import (
    SGD,
    SGLD,
    SWA,
    SWAG,
    Adam,
    CropAndFlip,
    CyclicalSGHMC,
    Inference,
    Laplace,
    MeanField,
    Newton,
    constant,
    cosine,
    fisher,
    ggn,
    stepwise,
)
from consilience.inference.coreset import BPCfKL
from consilience.inference.hmc import HMC
from consilience.inference.unrolled import Distillation
from consilience.key import Key
from consilience.method import Method, Needs, Pooled, State
from consilience.methods.bcm import BCM
from consilience.methods.beta import BetaPredictiveBayes
from consilience.methods.bounds import Centralised, LocalOnly, ServerOnly
from consilience.methods.coreset import CoresetFL
from consilience.methods.dosfl import DOSFL
from consilience.methods.ensembles import one_ensemble, v_distillation
from consilience.methods.ep_mcmc import EPMCMC
from consilience.methods.evidence import EvidencePooling
from consilience.methods.evidence_logits import EvidenceLogits
from consilience.methods.evidence_tuned import EvidenceTuned
from consilience.methods.fedavg import FedAvg
from consilience.methods.fedbe import FedBE
from consilience.methods.fedkt import FedKT
from consilience.methods.fedopt import FedAdam, FedAvgM, FedYogi
from consilience.methods.fedpa import FedPA
from consilience.methods.fedprox import FedProx
from consilience.methods.gaussian_product import GaussianProduct
from consilience.methods.mime import Mime, MimeLite
from consilience.methods.mixture import Mixture
from consilience.methods.oneshot import OneShotFL
from consilience.methods.pvi import PVI
from consilience.methods.scaffold import Scaffold
from consilience.methods.variational import VariationalAveraging
from consilience.models.mlp import linear, mlp
from consilience.models.variational import variational
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.pooling.distil import Distil, at_average, at_client, at_random
from consilience.pooling.ensembles import DirichletModels, Ensemble, GaussianModels
from consilience.pooling.merging import aalv, cf, eaa, gaa, merge, ppa, spread
from consilience.posterior import (
    Dense,
    Gaussian,
    Point,
    Posterior,
    Samples,
    average,
    dense_moments,
    draw,
    moments,
    multiply,
)
from consilience.predictive import Categorical, Normal, geometric, mixture, product, robust, shared, tempered
from consilience.prior import Flat, Isotropic
from consilience.runs.result import Prediction, Result
from consilience.runs.run import Compute, load, run
from consilience.splits.features import Noise, Rotation, shifted
from consilience.splits.labels import dirichlet, heterogeneous, iid, natural
from consilience.splits.skew import dominant, step
from consilience.task import Task, classification, regression
from consilience.tilt import decay
from consilience.training.optimisers import AdamSteps, Descent, Yogi
from consilience.version import __version__

__all__ = [
    "BCM", "DOSFL", "EPMCMC", "HMC", "PVI", "SGD", "SGLD", "SWA", "SWAG", "Adam", "AdamSteps", "BPCfKL",
    "BetaPredictiveBayes", "Categorical", "Centralised", "Client", "Compute", "CoresetFL", "CropAndFlip",
    "CyclicalSGHMC", "Data", "Dataset", "Dense", "Descent", "DirichletModels", "Distil", "Distillation", "Diverged",
    "Ensemble",
    "EvidenceLogits", "EvidencePooling", "EvidenceTuned", "FedAdam", "FedAvg", "FedAvgM", "FedBE", "FedKT", "FedPA",
    "FedProx", "FedYogi", "FederatedClassifier", "FederatedRegressor", "Flat", "Gaussian", "GaussianModels",
    "GaussianProduct", "Inference", "InputError", "Isotropic", "Key", "Laplace", "LocalOnly", "MeanField", "Method",
    "Mime", "MimeLite", "Mixture", "Needs", "Newton", "Noise", "Normal", "OneShotFL", "Parallel", "Participation",
    "Point", "Pooled", "Posterior", "Prediction", "Received", "Reply", "Result", "Rotation", "Samples", "Scaffold",
    "Sequential", "Server", "ServerOnly", "Sites", "State", "Task", "Turn", "VariationalAveraging", "Vectorised",
    "Yogi", "__version__", "aalv", "at_average", "at_client", "at_random", "average", "cf", "classification",
    "constant", "cosine", "dataset", "decay", "dense_moments", "digits", "dirichlet", "dominant", "draw", "eaa",
    "fisher", "from_arrays", "from_csv", "gaa", "geometric", "ggn", "heterogeneous", "iid", "inputs_from", "linear",
    "linear_gaussian", "load", "merge", "mixture", "mlp", "moments", "moons", "multiply", "natural", "one_ensemble",
    "payloads", "ppa", "product", "regression", "robust", "run", "shared", "shifted", "sine", "spread", "step",
    "stepwise", "swiss_roll", "tempered", "v_distillation", "variational", "weights",
]  # fmt: skip


def __getattr__(name: str) -> type:  # the two estimators: scikit-learn takes half a second that nothing else needs
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from consilience.runs.estimator import FederatedClassifier, FederatedRegressor

    return {"FederatedClassifier": FederatedClassifier, "FederatedRegressor": FederatedRegressor}[name]
