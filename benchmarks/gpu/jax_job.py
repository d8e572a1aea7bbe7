"""A JAX job of two processes, parameters sharded over both (FSDP by XLA), with faults switched on and off.

    python benchmarks/gpu/jax_job.py --plan plan.json --truth FOLDER

It starts its two processes itself. `phases.py` describes the plan, `phase_injector.py` the files in FOLDER;
only faults of the host. The loop does not use perfd, and prints its loss every few steps.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time

from phase_injector import PhaseInjector
from phases import job_arguments, load

_PROCESSES = 2


def train(args: argparse.Namespace, rank: int, address: str) -> None:
    import jax  # noqa: PLC0415  (the process that starts the others needs no GPU)
    import jax.numpy as jnp  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: PLC0415

    gpus = {"local_device_ids": [rank]} if args.gpu else {}
    jax.distributed.initialize(address, _PROCESSES, rank, **gpus)
    mesh = Mesh(np.array(jax.devices()), ("shard",))
    over_rows = NamedSharding(mesh, PartitionSpec("shard"))
    over_layers = NamedSharding(mesh, PartitionSpec(None, "shard"))
    hidden, layers, tokens = args.hidden, args.layers, args.micro_batch * args.sequence

    def sharded(shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
        def part(index: tuple[slice, ...]) -> np.ndarray:
            wanted = [range(*one.indices(size)) for one, size in zip(index, shape, strict=True)]
            random = np.random.default_rng(rank)
            return (0.02 * random.standard_normal([len(one) for one in wanted], np.float32)).astype(
                jnp.bfloat16
            )

        return jax.make_array_from_callback(shape, sharding, part)

    weights = (
        sharded((layers, hidden, 4 * hidden), over_layers),
        sharded((layers, 4 * hidden, hidden), over_layers),
    )
    batch = sharded((tokens * _PROCESSES, hidden), over_rows)

    def loss_of(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            up, down = one
            return x + jax.nn.gelu(x @ up) @ down, None

        x, _ = jax.lax.scan(layer, x, weights)
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @jax.jit
    def step(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        return tuple(w - 1e-4 * g for w, g in zip(weights, gradients, strict=True)), loss

    injector = PhaseInjector(args.plan, args.truth, rank, micro_batches=1, cuda=False)
    try:
        for number in range(1, load(args.plan)[-1].last_step + 1):
            injector.begin_step()
            injector.begin_micro_batch()
            weights, loss = step(weights, batch)
            loss.block_until_ready()
            if number % args.print_every == 0 and rank == 0:
                print(f"{time.strftime('%H:%M:%S')} step {number} loss {float(loss):.4f}", flush=True)
    finally:
        injector.close()
    jax.distributed.shutdown()


def main() -> None:
    parser = job_arguments(__doc__)
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--cpu", dest="gpu", action="store_false")
    parser.add_argument("--rank", type=int, help="of a process that this script started")
    parser.add_argument("--address")
    args = parser.parse_args()
    if args.rank is not None:
        train(args, args.rank, args.address)
        return
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    commands = [
        [sys.executable, *sys.argv, "--rank", str(rank), "--address", address] for rank in range(_PROCESSES)
    ]
    started = [subprocess.Popen(command, env=dict(os.environ)) for command in commands]
    sys.exit(max(abs(process.wait()) for process in started))


if __name__ == "__main__":
    main()
