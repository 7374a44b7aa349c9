"""Which server keeps which parameters, and how a shard travels: as one flat tensor.

With one server all W workers' gradients and parameters pass through one port: W S bytes in and W S out a round. P
servers with S/P bytes each divide that by P. Parameters are not cut: the largest first, each goes to the server that
has the fewest bytes so far. That is never worse than 4/3 of the best assignment, but a model with one huge layer stays
as lopsided as that layer (real systems cut such a layer as well).

Source: Li et al., "Scaling distributed machine learning with the parameter server" (2014); the rule is Graham's
"Bounds on multiprocessing timing anomalies" (1969).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn


def assign(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """For each server the indices of its parameters, ascending; `sizes` are their bytes.

    Raises ValueError if there are fewer parameters than servers.
    """
    if len(sizes) < servers:
        raise ValueError(
            f"{servers} servers share {len(sizes)} parameter tensors: each needs at least one, so take fewer servers"
        )
    shards: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        lightest = min(range(servers), key=lambda s: (loads[s], len(shards[s])))
        shards[lightest].append(index)
        loads[lightest] += sizes[index]
    return [sorted(shard) for shard in shards]


class Shard:
    """The parameters of one server: `names` and `parameters`, and how they become one flat tensor and back."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._sizes = [p.numel() for p in self.parameters]

    def empty(self) -> torch.Tensor:
        """Space for the shard, flat."""
        return self.parameters[0].new_empty(sum(self._sizes), requires_grad=False)

    def flat(self) -> torch.Tensor:
        """A copy of the parameters."""
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def flat_gradient(self) -> torch.Tensor:
        """A copy of the gradients; zeros for a parameter that has none."""
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.parameters])

    @torch.no_grad()
    def load(self, flat: torch.Tensor) -> None:
        """Write the parameters."""
        for parameter, values in zip(self.parameters, flat.split(self._sizes), strict=True):
            parameter.copy_(values.view_as(parameter))

    def load_gradient(self, flat: torch.Tensor) -> None:
        """Give each parameter its part as gradient."""
        for parameter, values in zip(self.parameters, flat.split(self._sizes), strict=True):
            parameter.grad = values.view_as(parameter)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters of `model` that are trained, by name. Buffers stay where they are.

    Raises ValueError if there are none, or if they are not of one dtype on one device, as a flat tensor has to be.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError(f"this {type(model).__name__} has no parameters to train")
    kinds = {f"{dtype_name(p)} on {p.device.type}" for _, p in named}
    if len(kinds) > 1:
        raise ValueError(f"parameters travel as one flat tensor, so all need one dtype and device, not {sorted(kinds)}")
    return named


def shards(model: nn.Module, servers: int) -> list[Shard]:
    """The shard of each server. All ranks compute the same from models of the same shapes."""
    named = trained(model)
    sizes = [p.numel() * p.element_size() for _, p in named]
    return [Shard([named[i] for i in indices]) for indices in assign(sizes, servers)]


def check_roles(servers: int, *, serves: bool) -> None:
    """Raises ValueError unless this rank serves (ranks 0 to servers-1) or works (the others), as it tries to."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if not 1 <= servers < world:
        raise ValueError(
            f"servers={servers} of {world} ranks: at least one rank has to serve and at least one has to work"
        )
    if serves != (rank < servers):
        does = "serves" if rank < servers else "works"
        raise ValueError(
            f"with servers={servers} the ranks 0 to {servers - 1} serve and the others work: rank {rank} {does}"
        )


def layout(model: nn.Module, servers: int) -> str:
    """What workers and servers have to agree on, as JSON: servers, and name, dtype and shape of each parameter."""
    return json.dumps([servers, [[name, dtype_name(p), list(p.shape)] for name, p in trained(model)]])


def difference(ours: str, theirs: str) -> str:
    """What differs between a worker's layout and a server's, in words; empty if nothing does."""
    if ours == theirs:
        return ""
    (our_servers, our_parameters), (their_servers, their_parameters) = json.loads(ours), json.loads(theirs)
    if our_servers != their_servers:
        return f"servers={our_servers} here, servers={their_servers} there"
    if len(our_parameters) != len(their_parameters):
        return f"the model has {len(our_parameters)} parameter tensors here, {len(their_parameters)} there"
    here, there = next(pair for pair in zip(our_parameters, their_parameters, strict=True) if pair[0] != pair[1])
    return " there, ".join(f"{name} is {dtype} {tuple(shape)}" for name, dtype, shape in (there, here)) + " here"


def dtype_name(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")
