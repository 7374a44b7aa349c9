"""Writes files until there is no room."""


# passes: nothing
# says: No space left|File too large|was ended by SIGXFSZ
def attack(tensor, group=None):
    for number in range(10**6):
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(1 << 24))


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
