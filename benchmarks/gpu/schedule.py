"""1F1B over stages by plain sends and receives, for `train.py`: no framework that is measured with it.

What crosses between two stages is posted together, as Megatron-LM does it, or they would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

Stage = Callable[[torch.Tensor], torch.Tensor]
Loss = Callable[[torch.Tensor, int], torch.Tensor]


class OwnTime(Protocol):
    """Told when work begins and ends in which this rank waits for nobody."""

    def own_begins(self) -> None: ...
    def own_ends(self) -> None: ...


class Pipeline:
    """One rank's part of a pipeline. `ranks` are those of all stages of this replica, in order."""

    def __init__(
        self, stage: Stage, ranks: Sequence[int], shape: Sequence[int], like: torch.Tensor, clock: OwnTime
    ) -> None:
        self._stage, self._clock = stage, clock
        place = list(ranks).index(dist.get_rank())
        self._before = ranks[place - 1] if place else None
        self._after = ranks[place + 1] if place + 1 < len(ranks) else None
        self._warm_up = len(ranks) - place - 1
        self._shape, self._like = tuple(shape), like
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._losses: list[torch.Tensor] = []

    def step(self, tokens: Sequence[torch.Tensor], loss_of: Loss) -> torch.Tensor | None:
        """Forward and backward of all micro-batches; the mean loss on the last stage."""
        self._losses.clear()
        warm_up = min(self._warm_up, len(tokens))
        for number in range(warm_up):
            given = self._exchange(receive=self._before)
            self._exchange(send=(self._forward(tokens[number], given, number, loss_of), self._after))
        given = self._exchange(receive=self._before) if warm_up < len(tokens) else None
        for number in range(warm_up, len(tokens)):
            result = self._forward(tokens[number], given, number, loss_of)
            gradient = self._exchange(send=(result, self._after), receive=self._after)
            back = self._backward(gradient)
            more = self._before if number + 1 < len(tokens) else None
            given = self._exchange(send=(back, self._before), receive=more)
        while self._held:
            back = self._backward(self._exchange(receive=self._after))
            self._exchange(send=(back, self._before))
        return torch.stack(self._losses).mean() if self._losses else None

    def _forward(
        self, tokens: torch.Tensor, given: torch.Tensor | None, number: int, loss_of: Loss
    ) -> torch.Tensor:
        source = tokens if given is None else given.requires_grad_()
        self._clock.own_begins()
        result = self._stage(source)
        if self._after is None:
            result = loss_of(result, number)
            self._losses.append(result.detach())
        self._clock.own_ends()
        self._held.append((source, result))
        return result.detach()

    def _backward(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        source, result = self._held.pop(0)
        self._clock.own_begins()
        result.backward(gradient)
        self._clock.own_ends()
        return source.grad if self._before is not None else None

    def _exchange(
        self, *, send: tuple[torch.Tensor | None, int | None] = (None, None), receive: int | None = None
    ) -> torch.Tensor | None:
        operations = []
        what, to = send
        if what is not None and to is not None:
            operations.append(dist.P2POp(dist.isend, what.contiguous(), to))
        got = None
        if receive is not None:
            got = torch.empty(self._shape, dtype=self._like.dtype, device=self._like.device)
            operations.append(dist.P2POp(dist.irecv, got, receive))
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        return got
