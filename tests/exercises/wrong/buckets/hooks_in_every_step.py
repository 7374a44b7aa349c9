"""Registers the hooks anew in every step, and counts what they count twice."""
# message: three steps: in step 2, rank 0 started the all-reduce of bucket . when not all

import torch
import torch.distributed as dist

MIB = 2**20


def assign(sizes, dtypes, bucket_mib=25, first_bucket_mib=1):
    buckets, opened, limits = [], {}, {}
    for number in reversed(range(len(sizes))):
        dtype = dtypes[number]
        opened.setdefault(dtype, []).append(number)
        if sum(sizes[n] for n in opened[dtype]) >= limits.get(dtype, first_bucket_mib) * MIB:
            buckets.append(opened.pop(dtype))
            limits[dtype] = bucket_mib
    return buckets + list(opened.values())


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


def overlap(buckets, group=None):
    started, left = [], []

    def begin():
        started.clear()
        left[:] = [len(bucket) for bucket in buckets]
        for number, bucket in enumerate(buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda _, number=number: gradient_is_there(number))

    def gradient_is_there(number):
        left[number] -= 1
        while len(started) < len(buckets) and left[len(started)] <= 0:
            started.append(start(buckets[len(started)], group))

    def wait():
        while len(started) < len(buckets):
            started.append(start(buckets[len(started)], group))
        for bucket, one in zip(buckets, started, strict=True):
            finish(bucket, one, group)
        begin()

    begin()
    return wait
