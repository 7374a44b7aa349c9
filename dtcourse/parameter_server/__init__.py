"""The parameter server: servers hold the parameters, workers pull them, compute gradients, push. One idea a file.

policies      when a gradient is applied, and when a worker may go on: synchronous, asynchronous, and between
server        what the ranks 0 to P-1 do: `serve(model, torch.optim.SGD, Synchronous(), servers=P, lr=0.1)`
worker        what the other ranks do: `Worker(model, servers=P)`, with `pull`, `push` and `finish`
shards        which server keeps which parameters
messages      what travels between them
checkpoint    how the servers' state outlives them
"""
