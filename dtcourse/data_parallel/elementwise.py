"""Whether an optimizer treats each element by itself, so that a rank may step a part of a parameter without the rest.

SGD, with momentum and weight decay, and the Adams do. LARS and LAMB (a norm of the whole parameter), Adafactor (sums of
rows and columns), Muon (the matrix as such) and L-BFGS (everything at once) do not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def refuse_unless_elementwise(make_optimizer: MakeOptimizer) -> None:
    """Try it: a matrix stepped as a whole has to become what it becomes in two pieces. Otherwise ValueError.

    TypeError if `make_optimizer` makes no optimizer, or one over other parameters than it is given.
    """
    whole, pieces = torch.linspace(-1, 1, 15, dtype=torch.float64).view(3, 5), (7, 8)
    gradients = [torch.linspace(-2, 3, 15, dtype=torch.float64).view(3, 5).roll(step) for step in range(3)]
    made(make_optimizer, [nn.Parameter(whole.clone())])
    try:
        expected = _stepped(make_optimizer, [whole], [[g] for g in gradients])
        stepped = _stepped(make_optimizer, whole.view(-1).split(pieces), [g.view(-1).split(pieces) for g in gradients])
        same = torch.allclose(expected, stepped, rtol=1e-9, atol=0)
    except Exception as problem:
        raise ValueError(f"this optimizer cannot step a part of a parameter: {problem}") from problem
    if not same:
        raise ValueError(
            "this optimizer is not elementwise: what it does to an element depends on others of the same parameter, "
            "and a rank has only some of them. SGD, Adam and AdamW are elementwise"
        )


def made(make_optimizer: MakeOptimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer, if it is one over exactly these parameters. Otherwise TypeError."""
    optimizer = make_optimizer(parameters) if callable(make_optimizer) else None
    if not isinstance(optimizer, torch.optim.Optimizer):
        got = (
            f"returned {type(optimizer).__name__}"
            if callable(make_optimizer)
            else f"is {type(make_optimizer).__name__}"
        )
        raise TypeError(
            f"make_optimizer {got}: pass what makes an optimizer of a list of parameters, such as "
            "partial(torch.optim.Adam, lr=1e-3)"
        )
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if {id(one) for one in held} != {id(one) for one in parameters}:
        raise TypeError(
            "make_optimizer(parameters) has to make the optimizer over the parameters it is given, and no others: "
            "those of the module are not what a rank steps"
        )
    return optimizer


def _stepped(
    make_optimizer: MakeOptimizer, tensors: list[torch.Tensor], gradients: list[list[torch.Tensor]]
) -> torch.Tensor:
    """What becomes of the tensors, end to end."""
    parameters = [nn.Parameter(tensor.clone()) for tensor in tensors]
    optimizer = made(make_optimizer, parameters)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
