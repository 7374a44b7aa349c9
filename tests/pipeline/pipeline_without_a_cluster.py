"""A pipeline as torchrun starts it: plain processes, gloo, and nothing of dtcourse but the algorithm and a word."""

import sys

import torch
import torch.distributed as dist
from piped_models import alone, batch, gradients, layers, mean_of_squares, mine, same

from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import one_f_one_b
from dtcourse.pipeline.zero_bubble import zero_bubble_h2

if __name__ == "__main__":
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=3)
    for make in (one_f_one_b, zero_bubble_h2):
        modules, plain = layers(3), layers(3)
        pipeline = Pipeline(make(3, 4), mine(modules), mean_of_squares)
        for size in (9, 9, 4):
            loss = pipeline.step(*batch(size))
            expected, _ = alone(plain, mean_of_squares, *batch(size))
            assert same([loss], [expected if rank == 2 else None])
        assert same(gradients(modules[rank]), gradients(plain[rank]))
    assert not {"dtcourse.cluster", "dtcourse.backends", "dtcourse.run"} & set(sys.modules)
    dist.destroy_process_group()
