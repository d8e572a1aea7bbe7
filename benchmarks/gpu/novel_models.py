"""Modules of the models in `novel_job.py`: adapters, patches of pictures, experts and exchanged heads."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn import functional
from torch.utils.data import Dataset
from train import Block, Part
from varied_job import Setup as OnHost

_ADAPTER_RANK, _EXPERTS = 16, 4
_PIXELS, _PATCH, _CLASSES = 224, 16, 1000


class Setup(OnHost):
    """Makes parameters on their device: with one thread, a host takes half a minute for a large model."""

    def part(self, *, first: bool = True, last: bool = True, layers: int | None = None) -> Part:
        with self.device:
            return super().part(first=first, last=last, layers=layers)


class Adapted(nn.Module):
    """A frozen linear layer, and a product of two small matrices that is trained."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        like = frozen.weight
        self.down = nn.Linear(frozen.in_features, _ADAPTER_RANK, bias=False).to(like.device, like.dtype)
        self.up = nn.Linear(_ADAPTER_RANK, frozen.out_features, bias=False).to(like.device, like.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Random pictures, cropped and flipped by the loader's workers."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        picture = generator.integers(256, size=(3, 256, 256), dtype=np.uint8)
        top, left = generator.integers(256 - _PIXELS, size=2)
        cropped = picture[:, top : top + _PIXELS, left : left + _PIXELS]
        flipped = cropped[:, :, ::-1] if index % 2 else cropped
        return torch.from_numpy(np.ascontiguousarray(flipped)), index % _CLASSES


class Transformer(nn.Module):
    """Classifies pictures by their patches."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, _PATCH, stride=_PATCH)
        self.blocks = nn.Sequential(*(Block(hidden, max(1, hidden // 64)) for _ in range(layers)))
        self.head = nn.Linear(hidden, _CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(pictures).flatten(2).transpose(1, 2)).mean(1))


class Routed(nn.Module):
    """A layer of attention, then experts on all ranks; more tokens go to some experts than to others."""

    def __init__(self, hidden: int, block: Block) -> None:
        super().__init__()
        self.block = block
        self.router = nn.Linear(hidden, _EXPERTS, bias=False)
        local = _EXPERTS // dist.get_world_size()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))
            for _ in range(local)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(flat).softmax(-1).max(-1)
        order = chosen.argsort()
        counts = chosen.bincount(minlength=_EXPERTS)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        world = dist.get_world_size()
        sent = counts.view(world, -1).sum(1).tolist()
        per_expert = arriving.view(world, -1)
        received = per_expert.sum(1).tolist()
        tokens = all_to_all_single(flat.new_empty(sum(received), flat.shape[1]), flat[order], received, sent)
        # Tokens of one sender are in the order of experts.
        parts = tokens.split(per_expert.flatten().tolist())
        done = list(parts)
        for at, expert in enumerate(self.experts):
            mine = torch.cat(parts[at :: len(self.experts)])
            for place, one in zip(
                range(at, len(parts), len(self.experts)),
                expert(mine).split([len(part) for part in parts[at :: len(self.experts)]]),
                strict=True,
            ):
                done[place] = one
        back = all_to_all_single(torch.empty_like(flat), torch.cat(done), sent, received)
        return x + (torch.empty_like(back).index_copy(0, order, back) * weight[:, None]).view_as(x)


class HeadsExchanged(nn.Module):
    """A layer whose attention has all of the sequence and a part of the heads on each rank."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        world, heads = dist.get_world_size(), self.block.heads
        size = hidden // heads
        qkv = self.block.qkv(self.block.norm_1(x)).view(batch, sequence, 3, world, heads // world, size)
        sent = qkv.permute(3, 1, 0, 2, 4, 5).contiguous()
        held = all_to_all_single(torch.empty_like(sent), sent)
        q, k, v = held.flatten(0, 1).permute(2, 1, 3, 0, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found = found.view(batch, heads // world, world, sequence, size).permute(2, 0, 1, 3, 4).contiguous()
        back = all_to_all_single(torch.empty_like(found), found)
        x = x + self.block.out(back.permute(1, 3, 0, 2, 4).reshape(batch, sequence, hidden))
        return x + self.block.down(functional.gelu(self.block.up(self.block.norm_2(x))))
