"""A small simulation: all stages go through time together, and what can be a backward is one."""

FORWARD, BACKWARD = 1, 2


def gpipe(rank, stages, microbatches):
    actions = sorted((m, kind) for m in range(microbatches) for kind in "FB")
    return [(kind, m) for m, kind in sorted(actions, key=lambda action: action[1], reverse=True)]


def one_f_one_b(rank, stages, microbatches):
    lists, there = [[] for _ in range(stages)], {}  # when the results of each action are there
    free = [0] * stages
    for now in range(3 * (microbatches + stages)):
        for stage, actions in enumerate(lists):
            done = {kind: sum(one == kind for one, _ in actions) for kind in "FB"}
            f, b = ("F", done["F"]), ("B", done["B"])
            if free[stage] > now:
                continue
            can_b = done["B"] < done["F"] and (stage == stages - 1 or there.get((*b, stage + 1), now + 1) <= now)
            can_f = stage == 0 or there.get((*f, stage - 1), now + 1) <= now
            action = b if can_b else f if can_f and done["F"] < min(done["B"] + stages - stage, microbatches) else None
            if action is not None:
                actions.append(action)
                free[stage] = there[(*action, stage)] = now + (BACKWARD if can_b else FORWARD)
    return lists[rank]
