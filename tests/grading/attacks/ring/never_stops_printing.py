"""Prints for ever."""


# passes: nothing
# says: printed more than 16 MB|had not finished
def attack(tensor, group=None):
    while True:
        print("x" * 100_000)


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
