"""A training step of JAX: `jax_step.py JOB` runs it once and prints what JAX's cost analysis counts.

`jax_step.py JOB FILE` then runs it again and again until FILE exists, a thousand times at most.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def step_of(loss):
    @jax.jit
    def train_step(weights, batch):
        gradients = jax.grad(loss)(weights, batch)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    return train_step


def layers():
    def loss(weights, batch):
        for weight in weights:
            batch = jnp.tanh(batch @ weight)
        return (batch**2).mean()

    return step_of(loss), [jnp.ones((256, 256)) for _ in range(4)], jnp.ones((64, 256)), 1


def sharded():
    step, weights, batch, _ = layers()
    mesh = jax.make_mesh((4,), ("data",))
    batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    return step, jax.device_put(weights, NamedSharding(mesh, PartitionSpec())), batch, 4


def scan():
    def layer(batch, weights):
        query, key, value = batch @ weights[0], batch @ weights[1], batch @ weights[2]
        attention = jax.nn.softmax(jnp.einsum("bsh,bth->bst", query, key))
        batch = jnp.einsum("bst,bth->bsh", attention, value) + batch
        return jax.nn.gelu(batch @ weights[3]) @ weights[3].T, None

    def loss(weights, batch):
        return (jax.lax.scan(layer, batch, weights)[0] ** 2).mean()

    return step_of(loss), jnp.ones((6, 4, 128, 128)), jnp.ones((2, 32, 128)), 1


def convolution():
    def loss(weights, batch):
        for weight in weights:
            batch = jax.nn.relu(jax.lax.conv(batch, weight, (1, 1), "SAME"))
        return (batch**2).mean()

    return step_of(loss), [jnp.ones((16, 16, 3, 3))] * 3, jnp.ones((4, 16, 32, 32)), 1


step, weights, batch, devices = globals()[sys.argv[1]]()
compiled = step.lower(weights, batch).compile()
compiled(weights, batch)
sys.stdout.write(json.dumps({"flops": compiled.cost_analysis()["flops"], "devices": devices}) + "\n")
for number in range(1, 1001 if len(sys.argv) > 2 else 1):
    if Path(sys.argv[2]).exists():
        break
    jax.block_until_ready(compiled(weights, batch))
    sys.stdout.write(f"step {number} loss 1.0\n")
    sys.stdout.flush()
    time.sleep(0.1)
