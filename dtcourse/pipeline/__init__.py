"""Pipelines: a model cut into stages, a batch cut into micro-batches, and who does what when. One idea a file.

actions       what a schedule is made of: F, B, or I and W; for each rank a tuple of them
schedules     GPipe, 1F1B, interleaved, PipeDream
zero_bubble   the backward cut in two: ZB-H1, ZB-H2
order         an order in which all actions can happen, or why there is none
lowering      the messages between the actions
check         is a schedule right?
simulate      what it costs in time and memory
versions      which weights a micro-batch meets in an asynchronous schedule
weights       what a stage does about it: nothing, weight stashing, SpecTrain
draw          the table of a schedule
partition     layers with measured costs into balanced stages
"""
