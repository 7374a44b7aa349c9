"""Asks the handle until it is over; and a generator hands the buckets out."""

import time

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
    while not handle.is_completed():
        time.sleep(0.0002)
    flat /= dist.get_world_size(group)
    for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        parameter.grad = part.view_as(parameter)


def overlap(buckets, group=None):
    there, started = set(), []

    def full():
        while len(started) < len(buckets) and there.issuperset(buckets[len(started)]):
            yield buckets[len(started)]

    def hook(parameter):
        there.add(parameter)
        for bucket in full():
            started.append((bucket, start(bucket, group)))

    def wait():
        for bucket in buckets[len(started) :]:
            started.append((bucket, start(bucket, group)))
        while started:
            bucket, one = started.pop(0)
            finish(bucket, one, group)
        there.clear()

    for parameter in [p for bucket in buckets for p in bucket]:
        parameter.register_post_accumulate_grad_hook(hook)
    return wait
