"""Data parallelism: every rank has the whole model and a share of each batch, and the gradients are averaged.

One idea a file:

replicas          the plain way: a broadcast in the beginning, an average after each backward pass
shares            what a rank's gradient counts for, and ranks that run out of batches
buckets           gradients that travel while the backward pass goes on; `background` is the thread that sends them
ddp_hook          any all-reduce under stock DistributedDataParallel
optimizer         in Horovod's manner: `negotiation` of what is ready, `fusion` of small tensors, the `exchange` of both
large_batch       the learning rate and the loss of a batch that is k times as large
sharded           ZeRO 1 and 2; `fully_sharded` is ZeRO 3, `flat_parameters` and `units` what both stand on
memory            the bytes that a rank holds, counted and predicted
"""
