"""The schedules that compute each backward in one piece: GPipe, 1F1B, interleaved, PipeDream.

Each is a generator of one rank's actions, and a function that asks it for every rank. In the tables a column is the
time of one forward; a backward takes two; .. is idle. `chart(gpipe(3, 4))` of `draw` makes them.
The formulas are for stages of equal cost and messages that take no time.

Sources: Huang et al., "GPipe" (2019); Narayanan et al., "PipeDream" (2019) and "Efficient large-scale language model
training on GPU clusters using Megatron-LM" (2021), which has the interleaved one.
"""

from __future__ import annotations

from collections.abc import Iterator

from .actions import Action, Schedule, backward, forward, require_sizes


def gpipe(stages: int, microbatches: int) -> Schedule:
    """GPipe: all forwards, then all backwards. P = `stages`, one a rank; M = `microbatches`.

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0--- B1--- B2--- B3---
    rank 1  .. F0 F1 F2 F3 .. .. .. B0--- B1--- B2--- B3---
    rank 2  .. .. F0 F1 F2 F3 B0--- B1--- B2--- B3---

    Bubble: (P-1) / (M+P-1) of the time. Memory: every rank keeps the activations of all M micro-batches. The paper's
    figure goes through the backwards from the last micro-batch to the first; that takes as long and keeps as much.
    """
    require_sizes(stages=stages, microbatches=microbatches)
    ranks = tuple(tuple(gpipe_rank(rank, microbatches)) for rank in range(stages))
    return Schedule(ranks, stages, microbatches)


def gpipe_rank(rank: int, microbatches: int) -> Iterator[Action]:
    """What one rank does under GPipe."""
    for microbatch in range(microbatches):
        yield forward(microbatch, rank)
    for microbatch in range(microbatches):
        yield backward(microbatch, rank)


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """1F1B: as soon as a backward can run, run it, so that its activation can go. One forward for each backward.

    rank 0  F0 F1 F2 .. .. .. .. B0--- F3 B1--- .. B2--- .. B3---
    rank 1  .. F0 F1 .. .. B0--- F2 B1--- F3 B2--- .. B3---
    rank 2  .. .. F0 B0--- F1 B1--- F2 B2--- F3 B3---

    Bubble: the one of GPipe. Memory: rank s keeps at most min(P-s, M) activations, however many micro-batches.
    """
    require_sizes(stages=stages, microbatches=microbatches)
    ranks = tuple(tuple(one_f_one_b_rank(rank, stages, microbatches)) for rank in range(stages))
    return Schedule(ranks, stages, microbatches)


def one_f_one_b_rank(rank: int, stages: int, microbatches: int) -> Iterator[Action]:
    """What one rank does under 1F1B: forwards until the first gradient can be back, then in turn, then what is left."""
    ahead = min(stages - 1 - rank, microbatches)
    for microbatch in range(ahead):
        yield forward(microbatch, rank)
    for microbatch in range(microbatches - ahead):
        yield forward(microbatch + ahead, rank)
        yield backward(microbatch, rank)
    for microbatch in range(microbatches - ahead, microbatches):
        yield backward(microbatch, rank)


def pipedream(stages: int, microbatches: int) -> Schedule:
    """PipeDream: 1F1B that never empties, since every backward is followed by an update of the stage's weights.

    The order is that of 1F1B; `microbatches` are now the mini-batches of the whole training, and the bubble of the
    start is paid once. The price: the forward of mini-batch m on stage s saw max(0, m-(P-1-s)) updates, its backward
    finds m, so the gradient is up to P-1-s updates old and the stage must keep P-s versions of its weights.
    """
    schedule = one_f_one_b(stages, microbatches)
    return Schedule(schedule.ranks, stages, microbatches, asynchronous=True)


def interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: each rank holds v = `chunks` shorter stages (r, r+P, r+2P, ...) and the bubble shrinks with v.

    rank 0  F0a F1a F0b F1b F2a ... B0b---- F3a B1b---- F2b B0a---- F3b B1a---- ... B2b---- ... B3b---- B2a---- B3a----
    rank 1  ... F0a F1a F0b B0b---- F1b B1b---- F2a B0a---- F3a B1a---- F2b B2b---- F3b B3b---- B2a---- B3a----

    (P = 2, M = 4, v = 2; a and b are the rank's first and second stage.) P micro-batches at a time go through all
    chunks of the model, so M must be a multiple of P.

    Bubble: (P-1) / (vM+P-1) of the time. Memory: rank 0 keeps up to 2(P-1) + (v-1)P + 1 activations of such a
    shorter stage (vP if M = P). Messages: v times as many as 1F1B.
    """
    require_sizes(ranks=ranks, microbatches=microbatches, chunks=chunks)
    if microbatches % ranks:
        few, many = microbatches - microbatches % ranks, microbatches + ranks - microbatches % ranks
        right = f"{few} or {many}" if few else f"{many}"
        raise ValueError(
            f"interleaved: {microbatches} micro-batches are no multiple of {ranks} ranks; cut the batch into {right}"
        )
    lists = tuple(tuple(interleaved_rank(rank, ranks, microbatches, chunks)) for rank in range(ranks))
    return Schedule(lists, ranks * chunks, microbatches)


def interleaved_rank(rank: int, ranks: int, microbatches: int, chunks: int) -> Iterator[Action]:
    """What one rank does under interleaved 1F1B: the turns of 1F1B, over (micro-batch, chunk) in groups of P."""
    total = microbatches * chunks

    def turn(k: int) -> tuple[int, int]:
        """The micro-batch and the chunk of the k-th forward."""
        group, place = divmod(k, ranks * chunks)
        return group * ranks + place % ranks, place // ranks

    def forwards(start: int, stop: int) -> Iterator[Action]:
        for microbatch, chunk in map(turn, range(start, stop)):
            yield forward(microbatch, chunk * ranks + rank)

    def backwards(start: int, stop: int) -> Iterator[Action]:
        for microbatch, chunk in map(turn, range(start, stop)):
            yield backward(microbatch, (chunks - 1 - chunk) * ranks + rank)

    ahead = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)
    yield from forwards(0, ahead)
    for k in range(total - ahead):
        yield from forwards(ahead + k, ahead + k + 1)
        yield from backwards(k, k + 1)
    yield from backwards(total - ahead, total)
