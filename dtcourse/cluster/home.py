"""A rank at home on a GPU: what the reader's function is given and what it makes lives there, with no word from him.

So one cell runs unchanged on a laptop and on GPUs. On the way out everything comes back to the CPU: the reader's
process needs no GPU, and opens none.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import cloudpickle
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

_STOPS = {
    getattr(torch.Tensor, name)
    for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__int__", "__float__", "__repr__", "__format__")
}  # where the host needs what the device has computed


def at_home(device: torch.device, before_a_stop: Callable[[], None]) -> AbstractContextManager[Any]:
    """While a function runs: new tensors are made on `device`, and `before_a_stop` is called before the host waits."""
    return nullcontext() if device.type == "cpu" else _AtHome(device, before_a_stop)


class _AtHome(TorchFunctionMode):
    """Like `torch.set_default_device`, but a generator of the CPU works: it draws there, and the numbers move."""

    def __init__(self, device: torch.device, before_a_stop: Callable[[], None]) -> None:
        super().__init__()
        self._device, self._before_a_stop = device, before_a_stop
        self._makers = _device_constructors()

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in _STOPS:
            self._before_a_stop()
        elif function in self._makers and kwargs.get("device") is None and kwargs.get("out") is None:
            generator = kwargs.get("generator")
            if generator is not None and generator.device.type != self._device.type:
                return _moved(function(*args, **kwargs), self._device)
            kwargs["device"] = self._device
        return function(*args, **kwargs)


def unpack(request: bytes | memoryview, device: torch.device) -> Any:
    """What the reader's process sent, with its tensors on `device`."""
    return pickle.loads(request) if device.type == "cpu" else _Arriving(request, device).load()


class _Arriving(pickle.Unpickler):
    def __init__(self, request: bytes | memoryview, device: torch.device) -> None:
        super().__init__(io.BytesIO(request))
        self._device = device

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is torch._utils._rebuild_tensor_v2:
            return lambda *parts: _moved(found(*parts), self._device)
        return found


def pack(value: Any) -> bytes:
    """A value on its way out of a rank, with its tensors on the CPU."""
    buffer = io.BytesIO()
    _Leaving(buffer).dump(value)
    return buffer.getvalue()


class _Leaving(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return reduced_on_the_cpu(obj) or super().reducer_override(obj)


def reduced_on_the_cpu(obj: Any) -> Any:
    """For a pickler: how to rebuild a tensor of a GPU as one of the CPU; None for anything else."""
    if not isinstance(obj, torch.Tensor) or obj.device.type == "cpu":
        return None
    copy = _moved(obj, torch.device("cpu"))
    if isinstance(obj, torch.nn.Parameter):
        copy = torch.nn.Parameter(copy.detach(), obj.requires_grad)
    return copy.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def sound(device: torch.device) -> bool:
    """Whether the device still works: after a failed kernel nothing does, in this process."""
    try:
        return device.type == "cpu" or torch.cuda.current_stream(device).query() in (True, False)
    except RuntimeError:
        return False
