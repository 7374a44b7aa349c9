"""Ray's actor parameter server, in a process of its own: `python -m benchmarks.ray_peer`.

The pattern is that of Ray's own asynchronous example: an actor holds the model and applies gradients, one actor a
worker computes them, and the driver hands references from one to the other, to whichever worker is done first.
Told a number of updates on stdin, it answers with the seconds they took.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import nn

WORKERS = 3
LR = 0.01
ALONE = {  # Ray would listen on all interfaces, and ask about the machine at the addresses of three cloud providers
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # off, its default elsewhere than on Linux: the node is at 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "http_proxy": "http://127.0.0.1:9",  # where nobody listens: what would leave the machine fails at once
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1,localhost",
}


def model() -> nn.Module:
    """1 MB of parameters."""
    return nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)])


def differentiate(model: nn.Module) -> None:
    """Gradients that cost nothing: the parameters themselves."""
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()


class ParameterServer:
    def __init__(self) -> None:
        self.model = model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)

    def apply_gradients(self, *gradients: list[np.ndarray]) -> dict[str, torch.Tensor]:
        for parameter, parts in zip(self.model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = torch.from_numpy(np.stack(parts).sum(axis=0))
        self.optimizer.step()
        return self.weights()

    def weights(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()


class DataWorker:
    def __init__(self) -> None:
        self.model = model()

    def compute_gradients(self, weights: dict[str, torch.Tensor]) -> list[np.ndarray]:
        self.model.load_state_dict(weights)
        differentiate(self.model)
        return [parameter.grad.numpy() for parameter in self.model.parameters()]


def train(ray: Any, server: Any, workers: list, updates: int) -> float:
    """Seconds of so many updates."""
    start = time.perf_counter()
    weights = server.weights.remote()
    computing = {worker.compute_gradients.remote(weights): worker for worker in workers}
    for _ in range(updates):
        (done,), _ = ray.wait(list(computing))
        worker = computing.pop(done)
        weights = server.apply_gradients.remote(done)
        computing[worker.compute_gradients.remote(weights)] = worker
    ray.wait([weights])
    seconds = time.perf_counter() - start
    ray.wait(list(computing), num_returns=len(computing))  # so that nothing runs on into somebody else's turn
    return seconds


def main() -> None:
    os.environ.update(ALONE)
    import ray

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address="local", num_cpus=1 + WORKERS, object_store_memory=256 << 20, _temp_dir=folder, **quiet)
        server = ray.remote(ParameterServer).remote()
        workers = [ray.remote(DataWorker).remote() for _ in range(WORKERS)]
        for line in sys.stdin:
            print(train(ray, server, workers, int(line)), flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main()
