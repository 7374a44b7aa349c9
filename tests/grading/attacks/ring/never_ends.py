"""Loops for ever."""


# passes: nothing
# says: had not finished after
def attack(tensor, group=None):
    while True:
        pass


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
