"""Model parallelism: parts of one model on different ranks, every rank with the same samples. One idea a file.

layers         one stage of layers after another, the naive way: one rank works, the others wait
activations    what travels between stages: tensors whose shape the receiver does not know
lstm           a stack of LSTM layers as stages
tensors        parts of one layer: column- and row-parallel linear layers, MLP, attention
transformer    the undivided transformer layer that `tensors` cuts
branches       the parallel arms of an Inception block
"""
