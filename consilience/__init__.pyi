"""The public names, each beside its home: type checkers read them here, programs load one when it is first used."""

from . import aggregation as aggregation, data as data, distributions as distributions, glm as glm
from . import inference as inference, key as key, messages as messages, method as method
from . import methods as methods, metrics as metrics, models as models, prediction_sets as prediction_sets
from . import draws as draws, task as task
from .benchmark.folds import cross_conformal as cross_conformal
from .benchmark.running import compare as compare
from .benchmark.tuning import tune as tune
from .biostatistics.table_one import table_one as table_one
from .data import Sites as Sites, datasets as datasets, from_arrays as from_arrays, from_csv as from_csv
from .data import from_frame as from_frame, from_table as from_table, splits as splits
from .errors import Diverged as Diverged, InputError as InputError
from .inference import SGD as SGD, SGLD as SGLD, SWAG as SWAG, Adam as Adam
from .inference import CyclicalSGHMC as CyclicalSGHMC, Laplace as Laplace, MeanField as MeanField, Sampler as Sampler
from .inference.hmc import HMC as HMC
from .method import Method as Method
from .methods.situation import recommend as recommend
from .runs import engines as engines
from .runs.conformal import conformal as conformal
from .runs.engines.participation import Participation as Participation
from .runs.estimator import FederatedClassifier as FederatedClassifier, FederatedRegressor as FederatedRegressor
from .runs.problem import Problem as Problem
from .runs.result import Result as Result
from .runs.run import Compute as Compute, load as load, run as run
from .task import Task as Task, classification as classification, counts as counts, regression as regression
from .task import survival as survival
from .version import __version__ as __version__
