"""The work is done in a file beside this one; the functions are made by another function."""

import neighbours


def make(phases):
    def reduce(tensor, group=None):
        for phase in phases:
            phase(neighbours.Neighbourhood(group), tensor)

    return reduce


ring_reduce_scatter = make([neighbours.Neighbourhood.add_up])
ring_all_gather = make([neighbours.Neighbourhood.hand_round])
ring_all_reduce = make([neighbours.Neighbourhood.add_up, neighbours.Neighbourhood.hand_round])
