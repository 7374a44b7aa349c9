"""Exercise: pipeline schedules.

A model is cut into P stages; stage s lives on rank s. A batch is cut into M micro-batches, so that the stages can work
at the same time, each on another one. Who does what when is a schedule: for each rank a list of actions.

    ("F", m)    the forward of micro-batch m on the rank's stage; needs F m of the stage before
    ("B", m)    the backward of micro-batch m on the rank's stage; needs its own F m, and B m of the stage after

A rank goes through its list from the front to the back. If what an action needs is not there yet, the rank stands
still: that is the bubble. From F m to B m it keeps the activation of micro-batch m: that is the memory.

You write two schedules, as data; they send nothing and compute nothing. The check asks on every rank for its list,
puts the lists together, and looks whether that can run, how long it takes and how much is kept. In the end it trains a
model with it, on real ranks.

    gpipe           all forwards, then all backwards
    one_f_one_b     a backward as soon as there can be one, so that its activation can go

    stages          P; there are as many ranks
    microbatches    M; 1 or more, and it may be less than P

In the tables a column is the time of one forward; a backward takes two; .. is idle.

Try it in a notebook with check("pipeline_schedules"), or in a terminal with: dtcourse check pipeline_schedules
"""

from __future__ import annotations


def gpipe(rank: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The actions of one rank under GPipe, in order: all forwards, then all backwards.

    Both go from micro-batch 0 to the last. P = 3, M = 4:

        rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0--- B1--- B2--- B3---
        rank 1  .. F0 F1 F2 F3 .. .. .. B0--- B1--- B2--- B3---
        rank 2  .. .. F0 F1 F2 F3 B0--- B1--- B2--- B3---

    so gpipe(0, 3, 4) is [("F", 0), ("F", 1), ("F", 2), ("F", 3), ("B", 0), ("B", 1), ("B", 2), ("B", 3)]: what is idle
    is not in the list.

    Bubble: (P-1) / (M+P-1) of the time. Memory: every rank keeps M activations. (The paper's figure goes through the
    backwards from the last micro-batch to the first. That takes as long and keeps as much.)
    """
    raise NotImplementedError("not written yet: gpipe")


def one_f_one_b(rank: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The actions of one rank under 1F1B, in order; forwards and backwards go from micro-batch 0 to the last.

        warm-up     min(P-1-s, M) forwards on rank s: until the first gradient can be back
        in turn     one forward, one backward, as long as there are forwards
        cool-down   the backwards that are left

    P = 3, M = 4:

        rank 0  F0 F1 F2 .. .. .. .. B0--- F3 B1--- .. B2--- .. B3---
        rank 1  .. F0 F1 .. .. B0--- F2 B1--- F3 B2--- .. B3---
        rank 2  .. .. F0 B0--- F1 B1--- F2 B2--- F3 B3---

    Bubble: (P-1) / (M+P-1) of the time, as GPipe. Memory: rank s keeps min(P-s, M) activations at most, however many
    micro-batches there are. That is what it is for.
    """
    raise NotImplementedError("not written yet: one_f_one_b")
