"""A JAX job on two GPUs or more, sharded (FSDP by XLA) or data parallel, with faults switched on and off.

    python benchmarks/gpu/jax_job.py --plan plan.json --truth FOLDER [--processes 1] [--layout data]

With a process for each GPU it starts them itself, joined by `jax.distributed`; one process has all GPUs.
`phases.py` describes the plan, `phase_injector.py` the files in FOLDER. The loop does not use perfd, and
prints its loss every few steps.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phase_injector import PhaseInjector
from phases import job_arguments, load

if TYPE_CHECKING:
    import jax

_PRODUCTS = 20


class JaxInjector(PhaseInjector):
    """Added products run on one GPU of JAX, before the step that this process starts next."""

    def __init__(self, plan: Path, out: Path, rank: int, *, device: jax.Device, sleeps: bool) -> None:
        super().__init__(plan, out, rank, micro_batches=1, cuda=False)
        self._device, self._sleeps = device, sleeps
        self._product: Any = None
        self._operand: Any = None

    def _sleep(self, seconds: float) -> None:
        # Of a process with two GPUs, the first one's injector sleeps for both.
        if self._sleeps:
            super()._sleep(seconds)

    def _multiply(self, products: int) -> None:
        for _ in range(products):
            self._product(self._operand)
        self._product_marks.append((self._step, 0.0, products * self._product_s))
        self._row["products"] += products

    def _calibrate(self) -> None:
        import jax  # noqa: PLC0415  (the process that starts the others needs no GPU)
        import jax.numpy as jnp  # noqa: PLC0415

        size = 6144 if self._device.platform == "gpu" else 64
        # On CPUs `device_put` of a host array is what every version of JAX has.
        self._operand = jax.device_put(jnp.ones((size, size), jnp.bfloat16), self._device)
        self._product = jax.jit(lambda x: x @ x)
        self._product(self._operand).block_until_ready()
        began_s = time.perf_counter()
        for _ in range(_PRODUCTS):
            last = self._product(self._operand)
        last.block_until_ready()
        self._product_s = (time.perf_counter() - began_s) / _PRODUCTS


def train(args: argparse.Namespace, rank: int, address: str | None) -> None:
    import jax  # noqa: PLC0415  (the process that starts the others needs no GPU)
    import jax.numpy as jnp  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: PLC0415

    if address is not None:
        gpus = {"local_device_ids": [rank]} if args.gpu else {}
        jax.distributed.initialize(address, args.processes, rank, **gpus)
    if args.profiler_port:
        jax.profiler.start_server(args.profiler_port + rank)
    mesh = Mesh(np.array(jax.devices()[: args.devices]), ("shard",))
    over_rows = NamedSharding(mesh, PartitionSpec("shard"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    over_layers = NamedSharding(mesh, PartitionSpec(None, "shard")) if args.layout == "fsdp" else everywhere
    hidden, layers, tokens = args.hidden, args.layers, args.micro_batch * args.sequence

    def spread(shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
        def part(index: tuple[slice, ...]) -> np.ndarray:
            wanted = [range(*one.indices(size)) for one, size in zip(index, shape, strict=True)]
            random = np.random.default_rng(wanted[0].start).standard_normal(100_003, np.float32)
            return np.resize((0.01 * random).astype(jnp.bfloat16), [len(one) for one in wanted])

        return jax.make_array_from_callback(shape, sharding, part)

    shapes = ((layers, hidden, 4 * hidden), (layers, 4 * hidden, hidden))
    if args.unrolled:
        weights = [[spread((1, *shape[1:]), over_layers) for _ in range(layers)] for shape in shapes]
    else:
        weights = [spread(shape, over_layers) for shape in shapes]
    batch = spread(
        (args.accumulate, tokens * args.devices, hidden), NamedSharding(mesh, PartitionSpec(None, "shard"))
    )

    def layer(x: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up, down = one
        return x + jax.nn.gelu(x @ up) @ down, None

    def loss_of(weights: list[Any], x: jax.Array) -> jax.Array:
        if args.unrolled:
            for up, down in zip(*weights, strict=True):
                x, _ = layer(x, (up[0], down[0]))
        else:
            x, _ = jax.lax.scan(layer, x, tuple(weights))
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    @jax.jit
    def step(weights: list[Any], batch: jax.Array) -> tuple[list[Any], jax.Array]:
        gradients, losses = None, jnp.float32(0)
        for at in range(args.accumulate):
            x = jax.lax.with_sharding_constraint(batch[at], over_rows)
            loss, found = jax.value_and_grad(loss_of)(weights, x)
            losses += loss
            gradients = found if gradients is None else jax.tree.map(jnp.add, gradients, found)
        return jax.tree.map(lambda w, g: (w - 1e-5 * g).astype(w.dtype), weights, gradients), losses

    numbers = range(args.devices) if args.processes == 1 else [rank]
    injectors = [
        JaxInjector(args.plan, args.truth, number, device=device, sleeps=at == 0)
        for at, (number, device) in enumerate(zip(numbers, jax.local_devices(), strict=False))
    ]
    ahead: jax.Array | None = None
    try:
        for number in range(1, load(args.plan)[-1].last_step + 1):
            for one in injectors:
                one.begin_step()
            for one in injectors:
                one.begin_micro_batch()
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                weights, loss = step(weights, batch)
            # The host may be one step ahead of its GPUs.
            (loss if ahead is None or not args.ahead else ahead).block_until_ready()
            ahead = loss
            if number % args.print_every == 0 and rank == 0:
                print(f"{time.strftime('%H:%M:%S')} step {number} loss {float(loss):.4f}", flush=True)
    finally:
        for one in injectors:
            one.close()
    if address is not None:
        jax.distributed.shutdown()


def main() -> None:
    parser = job_arguments(__doc__)
    parser.set_defaults(accumulate=1)
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2, help="1, or one for each GPU")
    parser.add_argument("--devices", type=int, default=2, help="GPUs of a single process")
    parser.add_argument("--layout", choices=("fsdp", "data"), default="fsdp")
    parser.add_argument("--unrolled", action="store_true", help="layers one by one, not as a loop of XLA")
    parser.add_argument("--ahead", action="store_true", help="wait for the loss of the step before")
    parser.add_argument(
        "--profiler-port", type=int, default=0, metavar="PORT", help="of rank 0; PORT + 1 of rank 1"
    )
    parser.add_argument("--cpu", dest="gpu", action="store_false")
    parser.add_argument("--rank", type=int, help="of a process that this script started")
    parser.add_argument("--address")
    args = parser.parse_args()
    args.devices = args.devices if args.processes == 1 else args.processes
    if args.rank is not None or args.processes == 1:
        train(args, args.rank or 0, args.address)
        return
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    commands = [
        [sys.executable, *sys.argv, "--rank", str(rank), "--address", address]
        for rank in range(args.processes)
    ]
    started = [subprocess.Popen(command, env=dict(os.environ)) for command in commands]
    sys.exit(max(abs(process.wait()) for process in started))


if __name__ == "__main__":
    main()
