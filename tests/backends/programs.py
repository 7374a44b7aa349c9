"""Programs of collectives and messages for the conformance suite: run on ranks, and computed plainly.

An operation is a dict. Every rank makes its inputs from the operation's seed and its rank, so that the plain
computation can make them all.
"""

from __future__ import annotations

import random
import time
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

REDUCTIONS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "AVG": torch.add,
}


def values(seed: int, rank: int, size: int, dtype: str) -> torch.Tensor:
    """Small integers: sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    return torch.randint(0, 2 if dtype == "bool" else 4, (size,), generator=generator).to(getattr(torch, dtype))


def strided(tensor: torch.Tensor, stride: int) -> torch.Tensor:
    """The same values, `stride` apart in memory."""
    if stride == 1:
        return tensor.clone()
    space = torch.zeros(max(1, len(tensor) * stride), dtype=tensor.dtype)
    view = space[: len(tensor) * stride : stride]
    view.copy_(tensor)
    return view


def sizes(op: dict[str, Any], world: int) -> list[int]:
    """Elements for each rank: all alike, or growing with the rank."""
    return [op["size"] + (rank if op.get("uneven") else 0) for rank in range(world)]


# -- on a rank -----------------------------------------------------------------------------------------------------


def run_program(program: list[dict[str, Any]], delays: int | None) -> list[Any]:
    """What this rank has after each operation. `delays`: a seed for pauses before operations."""
    pauses = random.Random(f"{delays} {dist.get_rank()}") if delays is not None else None
    got = []
    for op in program:
        if pauses:
            time.sleep(pauses.choice([0, 0, 0.001, 0.003]))
        got.append(DO[op["name"]](op, dist.get_rank(), dist.get_world_size()))
    return got


def mine(op: dict[str, Any], rank: int, size: int | None = None) -> torch.Tensor:
    return strided(values(op["seed"], rank, op["size"] if size is None else size, op["dtype"]), op["stride"])


def space(op: dict[str, Any], size: int) -> torch.Tensor:
    return strided(torch.zeros(size, dtype=getattr(torch, op["dtype"])), op["stride"])


def do_all_reduce(op, rank, world):
    x = mine(op, rank)
    work = dist.all_reduce(x, getattr(dist.ReduceOp, op["reduction"]), async_op=op["flight"])
    if work:
        work.wait()
    return x.clone()


def do_several_in_flight(op, rank, world):
    xs = [values(op["seed"] + i, rank, op["size"] + i, op["dtype"]) for i in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs[:2]]
    dist.all_reduce(xs[2])  # after the two, although nobody waits for them
    works += [dist.all_reduce(xs[3], async_op=True)]
    for work in works:
        work.wait()
    return xs


def do_reduce(op, rank, world):
    x = mine(op, rank)
    dist.reduce(x, op["root"] % world, getattr(dist.ReduceOp, op["reduction"]))
    return x.clone() if rank == op["root"] % world else None


def do_broadcast(op, rank, world):
    x = mine(op, rank)
    dist.broadcast(x, op["root"] % world)
    return x.clone()


def do_all_gather(op, rank, world):
    n = sizes(op, world)
    outs = [space(op, k) for k in n]
    dist.all_gather(outs, mine(op, rank, n[rank]))
    return [o.clone() for o in outs]


def do_all_gather_into_tensor(op, rank, world):
    out = torch.zeros(op["size"] * world, dtype=getattr(torch, op["dtype"]))
    dist.all_gather_into_tensor(out, mine(op, rank).contiguous())
    return out


def do_reduce_scatter(op, rank, world):
    n = sizes(op, world)
    out = space(op, n[rank])
    ins = [strided(values(op["seed"] + to, rank, n[to], op["dtype"]), op["stride"]) for to in range(world)]
    dist.reduce_scatter(out, ins, getattr(dist.ReduceOp, op["reduction"]))
    return out.clone()


def do_reduce_scatter_tensor(op, rank, world):
    out = torch.zeros(op["size"], dtype=getattr(torch, op["dtype"]))
    dist.reduce_scatter_tensor(out, values(op["seed"], rank, op["size"] * world, op["dtype"]))
    return out


def do_all_to_all(op, rank, world):
    n = sizes(op, world)
    ins = [strided(values(op["seed"] + to, rank, n[to], op["dtype"]), op["stride"]) for to in range(world)]
    outs = [space(op, n[rank]) for _ in range(world)]
    dist.all_to_all(outs, ins)
    return [o.clone() for o in outs]


def do_all_to_all_single(op, rank, world):
    n = sizes(op, world)
    out = torch.zeros(n[rank] * world, dtype=getattr(torch, op["dtype"]))
    ins = torch.cat([values(op["seed"] + to, rank, n[to], op["dtype"]) for to in range(world)])
    dist.all_to_all_single(out, ins, [n[rank]] * world, n)
    return out


def do_scatter(op, rank, world):
    root = op["root"] % world
    out = space(op, op["size"])
    ins = [strided(values(op["seed"] + to, rank, op["size"], op["dtype"]), op["stride"]) for to in range(world)]
    dist.scatter(out, ins if rank == root else None, src=root)
    return out.clone()


def do_gather(op, rank, world):
    root = op["root"] % world
    outs = [space(op, op["size"]) for _ in range(world)] if rank == root else None
    dist.gather(mine(op, rank), outs, dst=root)
    return [o.clone() for o in outs] if outs else None


def do_barrier(op, rank, world):
    dist.barrier()


def do_messages_round(op, rank, world):
    """Several messages to both neighbours at once, told apart by tags, received in another order."""
    if world == 1:
        return []
    right, left = (rank + 1) % world, (rank - 1) % world
    works = [
        dist.isend(strided(values(op["seed"] + t, rank, op["size"] + t, op["dtype"]), op["stride"]), right, tag=t)
        for t in range(3)
    ]
    got = [space(op, op["size"] + t) for t in range(3)]
    works += [dist.irecv(got[t], left, tag=t) for t in (2, 0, 1)]
    for work in works:
        work.wait()
    return [g.clone() for g in got]


def do_receive_from_any(op, rank, world):
    dist.barrier()  # or a fast rank's next message could be taken for a slow rank's first
    got = []
    for _ in range(world - 1 if rank == 0 else 0):
        x = space(op, op["size"])
        source = dist.recv(x, tag=7)
        got.append((source, x.clone()))
    if rank:
        dist.send(mine(op, rank), 0, tag=7)
    return sorted(got, key=lambda pair: pair[0])


DO = {name.removeprefix("do_"): function for name, function in list(globals().items()) if name.startswith("do_")}


# -- computed plainly ----------------------------------------------------------------------------------------------


def plain(op: dict[str, Any], rank: int, world: int) -> Any:
    """What rank `rank` should have."""

    def reduced(parts: list[torch.Tensor]) -> torch.Tensor:
        total = reduce(REDUCTIONS[op["reduction"]], parts)
        return total / world if op["reduction"] == "AVG" else total

    def value(of: int, size: int | None = None, shift: int = 0) -> torch.Tensor:
        return values(op["seed"] + shift, of, op["size"] if size is None else size, op["dtype"])

    name, n, root, ranks = op["name"], sizes(op, world), op["root"] % world, range(world)
    if name == "all_reduce":
        return reduced([value(r) for r in ranks])
    if name == "several_in_flight":
        return [reduce(torch.add, [value(r, op["size"] + i, i) for r in ranks]) for i in range(4)]
    if name == "reduce":
        return reduced([value(r) for r in ranks]) if rank == root else None
    if name == "broadcast":
        return value(root)
    if name == "all_gather":
        return [value(r, n[r]) for r in ranks]
    if name == "all_gather_into_tensor":
        return torch.cat([value(r) for r in ranks])
    if name == "reduce_scatter":
        return reduced([value(r, n[rank], rank) for r in ranks])
    if name == "reduce_scatter_tensor":
        whole = reduce(torch.add, [value(r, op["size"] * world) for r in ranks])
        return whole[rank * op["size"] : (rank + 1) * op["size"]]
    if name == "all_to_all":
        return [value(r, n[rank], rank) for r in ranks]
    if name == "all_to_all_single":
        return torch.cat([value(r, n[rank], rank) for r in ranks])
    if name == "scatter":
        return value(root, shift=rank)
    if name == "gather":
        return [value(r) for r in ranks] if rank == root else None
    if name == "messages_round":
        return [value((rank - 1) % world, op["size"] + t, t) for t in range(3)] if world > 1 else []
    if name == "receive_from_any":
        return [(r, value(r)) for r in range(1, world)] if rank == 0 else []
    return None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
