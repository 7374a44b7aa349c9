"""Goes back, and forgets to update."""
# message: in B0 on stage 2, the velocity becomes what it was before: update\(\) has to be called


def versions(stage, stages, microbatch):
    return max(0, microbatch - (stages - 1 - stage)), microbatch


def update(weights, velocity, gradients, lr, g):
    for w, v, gradient in zip(weights, velocity, gradients, strict=True):
        v.mul_(g).add_((1 - g) * gradient)
        w -= lr * v


def compute_on(weights, values, compute):
    true = [w.clone() for w in weights]
    for w, value in zip(weights, values, strict=True):
        w.copy_(value)
    answer = compute()
    for w, value in zip(weights, true, strict=True):
        w.copy_(value)
    return answer


def stashing_forward(microbatch, weights, stash, compute):
    stash[microbatch] = [w.clone() for w in weights]
    return compute()


def stashing_backward(microbatch, weights, velocity, stash, lr, g, compute):
    compute_on(weights, stash.pop(microbatch), compute)


def ahead(stage, stages):
    return stage // 2 + stages - 1 - stage, stage // 2


def predict(weights, velocity, lr, updates):
    return [w - updates * lr * v for w, v in zip(weights, velocity, strict=True)]


def spectrain_forward(stage, stages, weights, velocity, lr, compute):
    updates, _ = ahead(stage, stages)
    return compute_on(weights, predict(weights, velocity, lr, updates), compute)


def spectrain_backward(stage, stages, weights, velocity, lr, g, compute):
    _, updates = ahead(stage, stages)
    gradients = compute_on(weights, predict(weights, velocity, lr, updates), compute)
    update(weights, velocity, gradients, lr, g)
