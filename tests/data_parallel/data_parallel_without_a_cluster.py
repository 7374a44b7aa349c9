"""Every way as torchrun starts it: plain processes, gloo, and nothing of dtcourse but the algorithms and a word."""

import sys
import threading

import torch
import torch.distributed as dist
from every_way import WAYS, job, sharded_job
from trained_models import alone, batches, difference

WORLD = 3

if __name__ == "__main__":
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD)
    steps = batches(WORLD)
    expected = alone(steps)
    own = [step[rank] for step in steps]
    trained = [job(way.train, own, "ring", 1)[0] for way in WAYS.values()]
    trained += [sharded_job(stage, own)[0] for stage in (1, 2, 3)]
    assert all(difference(weights, expected) < 1e-10 for weights in trained)
    assert not {"dtcourse.cluster", "dtcourse.backends", "dtcourse.run"} & set(sys.modules)
    dist.destroy_process_group()
    assert "communication" not in [thread.name for thread in threading.enumerate()]
