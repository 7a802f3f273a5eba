"""FedAvg rounds in FedJAX: the MNIST MLP, 600 examples a client, one epoch, batch 100; run by its own environment."""

import json
import statistics
import sys
import time

import jax

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # taken out of newer jax, still called by FedJAX 0.0.17

import fedjax
import jax.numpy as jnp
import numpy

LAYERS, ROWS, BATCH, RATE = (784, 100, 100, 10), 600, 100, 0.05


def initial(key):
    keys = jax.random.split(key, len(LAYERS) - 1)
    pairs = zip(keys, LAYERS[:-1], LAYERS[1:], strict=True)
    return [(jax.random.normal(k, (a, b)) / numpy.sqrt(a), jnp.zeros(b)) for k, a, b in pairs]


def loss(params, batch, key):
    x = batch["x"]
    for i, (w, b) in enumerate(params):
        x = x @ w + b
        x = jax.nn.relu(x) if i + 1 < len(params) else x
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), batch["y"][:, None], 1))


def main(clients, repeats):
    generator = numpy.random.default_rng(0)
    sets = [
        fedjax.ClientDataset(
            {
                "x": generator.normal(size=(ROWS, LAYERS[0])).astype("float32"),
                "y": generator.integers(0, LAYERS[-1], ROWS).astype("int32"),
            }
        )
        for _ in range(clients)
    ]
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(RATE), fedjax.optimizers.sgd(1.0), batches
    )
    state, seconds = algorithm.init(initial(jax.random.PRNGKey(0))), []
    for _ in range(repeats + 1):
        keys = jax.random.split(jax.random.PRNGKey(1), clients)
        begin = time.perf_counter()
        state, _ = algorithm.apply(state, [(b"%d" % k, sets[k], keys[k]) for k in range(clients)])
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": statistics.median(seconds[1:])}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
