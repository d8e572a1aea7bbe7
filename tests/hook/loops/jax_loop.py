"""A small loop with the one line for jax."""

import jax

from perfd.hook.jax import JaxSteps

step_of = jax.jit(lambda state: state @ state / 32)
state = jax.numpy.ones((32, 32))
flops = step_of.lower(state).compile().cost_analysis()["flops"]
steps = JaxSteps(samples=8, tokens=128, flops=flops)
for _ in range(12):
    with steps.step():
        state = step_of(state)
jax.block_until_ready(state)
steps.close()
