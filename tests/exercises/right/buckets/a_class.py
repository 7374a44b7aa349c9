"""The state in an object, counters in place of sets."""

import torch
import torch.distributed as dist

MIB = 2**20


def assign(sizes, dtypes, bucket_mib=25, first_bucket_mib=1):
    open_ones, seen, result = {}, set(), []
    for number, (size, dtype) in reversed(list(enumerate(zip(sizes, dtypes, strict=True)))):
        members, held = open_ones.get(dtype, ((), 0))
        members, held = (*members, number), held + size
        open_ones[dtype] = members, held
        if held >= (bucket_mib if dtype in seen else first_bucket_mib) * MIB:
            seen.add(dtype)
            result.append(list(members))
            del open_ones[dtype]
    return [*result, *(list(members) for members, _ in open_ones.values())]


def start(bucket, group=None):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    return flat, dist.all_reduce(flat, group=group, async_op=True)


def finish(bucket, started, group=None):
    flat, handle = started
    handle.wait()
    flat /= dist.get_world_size(group)
    for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        parameter.grad = part.view_as(parameter)


class Reducer:
    def __init__(self, buckets, group):
        self.buckets, self.group = buckets, group
        self.begin()
        for number, bucket in enumerate(buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: self.arrives(number))

    def begin(self):
        self.left, self.started = [len(bucket) for bucket in self.buckets], []

    def arrives(self, number):
        self.left[number] -= 1
        self.start_those(lambda left: left == 0)

    def start_those(self, are_ready):
        for number in range(len(self.started), len(self.buckets)):
            if not are_ready(self.left[number]):
                break
            self.started.append(start(self.buckets[number], self.group))

    def wait(self):
        self.start_those(lambda left: True)
        for bucket, started in zip(self.buckets, self.started, strict=True):
            finish(bucket, started, self.group)
        self.begin()


def overlap(buckets, group=None):
    return Reducer(buckets, group).wait
