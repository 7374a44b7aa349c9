"""Which tensors are in memory while somebody's function runs: those that it makes, and those that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode


class Living(TorchFunctionMode):
    """`with Living() as living:` follows the memory of all tensors that torch's functions return, but in `aside()`."""

    def __init__(self) -> None:
        super().__init__()
        self._there: dict[StorageWeakRef, tuple[str, int]] = {}
        self._aside = False

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (list, tuple)) else (made,):
            if isinstance(tensor, torch.Tensor) and not self._aside:
                self._there.setdefault(
                    StorageWeakRef(tensor.untyped_storage()), ("", tensor.untyped_storage().nbytes())
                )
        return made

    def follow(self, tensor: torch.Tensor, name: str) -> None:
        """This one, too, from now on; under this name, if it was followed already."""
        self._there[StorageWeakRef(tensor.untyped_storage())] = name, tensor.untyped_storage().nbytes()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is made in here is somebody else's."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    def there(self) -> list[tuple[str, int]]:
        """Name (or "") and bytes of each piece of memory that is still there; a view keeps all of which it is one."""
        self._there = {storage: told for storage, told in self._there.items() if not storage.expired()}
        return list(self._there.values())
