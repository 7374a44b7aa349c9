"""A job as torchrun would start it: plain processes, gloo, and nothing of dtcourse but the algorithm and two words."""

import sys

import torch
import torch.distributed as dist
from jobs import plain, same, train

from dtcourse.parameter_server.policies import Synchronous

SIZES = [7, 7, 4]

if __name__ == "__main__":
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=3)
    assert same(train(Synchronous(), 1, SIZES), plain(SIZES)[0])
    assert not {"dtcourse.cluster", "dtcourse.backends", "dtcourse.run"} & set(sys.modules)
    dist.destroy_process_group()
