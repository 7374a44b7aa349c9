"""Where ranks live, for every number of GPUs; and what a function finds there."""

import pytest
import torch

from dtcourse.cluster.devices import place
from dtcourse.cluster.home import at_home


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.delenv("DTCOURSE_BACKEND", raising=False)
    monkeypatch.delenv("DTCOURSE_DEVICE", raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """Let torch say that there are so many."""
    return lambda number: monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


@pytest.mark.parametrize(
    ("number", "world", "devices", "backend"),
    [
        (0, 3, ["cpu", "cpu", "cpu"], "shared_memory"),
        (1, 1, ["cuda:0"], "nccl"),
        (1, 3, ["cuda:0", "cuda:0", "cuda:0"], "shared_memory"),
        (2, 3, ["cuda:0", "cuda:1", "cuda:0"], "shared_memory"),
        (4, 3, ["cuda:0", "cuda:1", "cuda:2"], "nccl"),
    ],
)
def test_auto(gpus, number, world, devices, backend):
    gpus(number)
    assert place(world) == (tuple(devices), backend)


def test_the_cpu_on_a_machine_with_gpus(gpus, monkeypatch):
    gpus(4)
    cpu = (("cpu", "cpu"), "shared_memory")
    assert place(2, device="cpu") == cpu
    assert place(2, backend="gloo") == (("cpu", "cpu"), "gloo")
    monkeypatch.setenv("DTCOURSE_DEVICE", "cpu")
    assert place(2) == cpu
    assert place(2, device="cuda").backend == "nccl"  # who says it himself is heard


def test_ranks_share_gpus_if_asked_to(gpus):
    gpus(4)
    assert place(2, backend="shared_memory") == (("cuda:0", "cuda:1"), "shared_memory")


@pytest.mark.parametrize(
    ("number", "asked", "said"),
    [
        (0, {"device": "cuda"}, "torch finds no GPU on this machine"),
        (2, {"device": "cuda", "backend": "gloo"}, "gloo has no messages between GPUs"),
        (1, {"backend": "nccl"}, "here are 1 for 2 ranks"),
        (2, {"backend": "nccl", "device": "cpu"}, "here are 0 for 2 ranks"),
        (0, {"device": "gpu"}, 'device is "auto", "cpu" or "cuda"'),
        (0, {"backend": "mpi"}, 'backend is "auto", "shared_memory", "gloo" or "nccl"'),
    ],
)
def test_what_cannot_be_is_refused(gpus, number, asked, said):
    gpus(number)
    with pytest.raises(ValueError, match=said):
        place(2, **asked)


def test_what_a_function_makes_lives_on_its_device():
    meta = torch.device("meta")  # a device that every build of torch has
    with at_home(meta, before_a_stop=lambda: None):
        assert torch.ones(3).device == meta
        assert torch.tensor([1, 2]).device == meta
        assert torch.nn.Linear(2, 2).weight.device == meta
        assert torch.ones(3, device="cpu").device.type == "cpu"
    assert torch.ones(3).device.type == "cpu"


def test_a_generator_of_the_cpu_works_on_every_device():
    with at_home(torch.device("meta"), before_a_stop=lambda: None):
        generator = torch.Generator().manual_seed(1)
        assert torch.randn(3, generator=generator).device.type == "meta"
        assert torch.randperm(3, generator=generator).device.type == "meta"
        assert generator.get_state().tolist() != torch.Generator().manual_seed(1).get_state().tolist()


def test_what_stops_the_host_is_noticed_before():
    stops = []
    with at_home(torch.device("meta"), before_a_stop=lambda: stops.append(1)):
        x = torch.ones(2, device="cpu")
        assert not stops
        x.tolist()
        x[0].item()
        assert bool(x[0] == 1)
    assert len(stops) == 3


def test_on_the_cpu_nothing_is_between_the_function_and_torch():
    with at_home(torch.device("cpu"), before_a_stop=lambda: None) as mode:
        assert mode is None
