"""Data parallelism: every rank has the whole model and a share of each batch, and the gradients are averaged."""
