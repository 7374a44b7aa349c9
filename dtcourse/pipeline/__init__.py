"""Pipelines: a model cut into stages, a batch cut into micro-batches, and who does what when. One idea a file.

actions         what a schedule is made of: F, B, or I and W; for each rank a tuple of them
schedules       GPipe, 1F1B, interleaved, PipeDream
zero_bubble     the backward cut in two: ZB-H1, ZB-H2
order           an order in which all actions can happen, or why there is none
lowering        the messages between the actions
check           is a schedule right?
simulate        what it costs in time and memory
versions        which weights a micro-batch meets in an asynchronous schedule
weights         what a stage does about it: nothing, weight stashing, SpecTrain
draw            the table of a schedule
partition       layers with measured costs into balanced stages

runner          runs a schedule on real ranks: `Pipeline(schedule, modules, loss).step(x, y)`
stage           one stage: computes F, B, or I and W of a micro-batch
microbatches    a batch cut into them, and their shares
split_backward  one backward in two halves: input gradients first, those of weights later
recompute       keeps the inputs of a stage instead of its activations
emulated        a layer that takes as long as you say
messages        of one batch on one rank: posted as the program says, waited for as late as can be
boundary        what travels between two stages, found by running
tied            a parameter that the first and the last stage share
"""
