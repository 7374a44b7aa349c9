"""The gradients travel as objects once more, and those are averaged."""
# message: rank 0 called all_gather: all that a bucket needs is one all_reduce

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
    _, handle = started
    handle.wait()
    everybody = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, [p.grad for p in bucket], group=group)
    for i, parameter in enumerate(bucket):
        used = [gradients[i] for gradients in everybody if gradients[i] is not None]
        parameter.grad = sum(used, torch.zeros_like(parameter)) / len(everybody)


def overlap(buckets, group=None):
    number_of = {parameter: number for number, bucket in enumerate(buckets) for parameter in bucket}
    missing = [set(bucket) for bucket in buckets]
    started = []

    def start_next():
        started.append(start(buckets[len(started)], group))

    def gradient_is_there(parameter):
        missing[number_of[parameter]].discard(parameter)
        while len(started) < len(buckets) and not missing[len(started)]:
            start_next()

    def wait():
        while len(started) < len(buckets):
            start_next()
        for bucket, one in zip(buckets, started, strict=True):
            finish(bucket, one, group)
        started.clear()
        missing[:] = [set(bucket) for bucket in buckets]

    for parameter in number_of:
        parameter.register_post_accumulate_grad_hook(gradient_is_there)
    return wait
