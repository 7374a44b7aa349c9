"""Who is told when autograd has computed a gradient: one object for each parameter, the newest that wants to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

_hooks: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter -> the handle of its hook


def tell(notice: Callable[[nn.Parameter], None], parameters: Iterable[nn.Parameter]) -> list[RemovableHandle]:
    """Have `notice(parameter)` called after each accumulation into `parameter.grad`, and the one before no longer.

    Two that average one gradient would each multiply it by the share. An older Reducer, say, goes on without overlap.
    """
    handles = []
    for parameter in parameters:
        if parameter in _hooks:
            _hooks[parameter].remove()
        _hooks[parameter] = parameter.register_post_accumulate_grad_hook(notice)
        handles.append(_hooks[parameter])
    return handles


def untell(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
