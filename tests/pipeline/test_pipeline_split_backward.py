"""Both halves of a backward give the gradients of the whole one, and only what has to be there is there in between."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from dtcourse.model_parallel.transformer import Block
from dtcourse.pipeline import split_backward
from dtcourse.pipeline.split_backward import deferrable, input_half

DOUBLE = torch.double


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny layers lose more by threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def equal(left: list, right: list, tolerance: float = 1e-12) -> bool:
    return len(left) == len(right) and all(
        a is b is None or (a is not None and b is not None and torch.allclose(a, b, atol=tolerance, rtol=tolerance))
        for a, b in zip(left, right, strict=True)
    )


def loss_of(y: torch.Tensor) -> torch.Tensor:
    return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


def compare(module: nn.Module, *batches: torch.Tensor, tolerance: float = 1e-12, frozen_input: bool = False):
    """Forward, both halves and gradients of a module against its copy that knows no halves; returns what was late."""
    whole, halves = copy.deepcopy(module), deferrable(module)
    late: set[str] = set()
    for batch in batches:  # .grad is added to
        x, z = (batch.clone().requires_grad_(not frozen_input) for _ in range(2))
        loss_of(whole(z)).backward()
        before = gradients(halves)
        y = halves(x)
        assert torch.equal(y, whole(z))
        with input_half() as later:
            loss_of(y).backward()
        assert frozen_input or equal([x.grad], [z.grad], tolerance)
        between = gradients(halves)
        late |= {
            name
            for (name, _), p, old, new in zip(
                halves.named_parameters(), halves.parameters(), before, between, strict=True
            )
            if p.requires_grad and equal([old], [new], 0)
        }
        later.weight_half()
        assert equal(gradients(halves), gradients(whole), tolerance)
        assert not any(p.grad.requires_grad for p in halves.parameters() if p.grad is not None)  # nothing else is kept
        later.weight_half()  # there is no more to do
        assert equal(gradients(halves), gradients(whole), tolerance)
    return late


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3), inputs=st.integers(1, 5), outputs=st.integers(1, 5), data=st.data()
)
def test_linear(shape, inputs, outputs, data):
    layer = nn.Linear(inputs, outputs, bias=data.draw(st.booleans()), dtype=DOUBLE)
    layer.weight.requires_grad_(data.draw(st.booleans()))
    frozen_input = data.draw(st.booleans())
    if frozen_input and not any(p.requires_grad for p in layer.parameters()):
        return
    batches = [torch.randn(*shape, inputs, dtype=DOUBLE) for _ in range(data.draw(st.integers(1, 3)))]
    late = compare(layer, *batches, frozen_input=frozen_input)
    assert late == {name for name, p in layer.named_parameters() if p.requires_grad}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_convolution(data):
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    kind = data.draw(st.sampled_from([nn.Conv1d, nn.Conv2d, nn.Conv3d]))
    dimensions = (nn.Conv1d, nn.Conv2d, nn.Conv3d).index(kind) + 1
    groups = draw(1, 2)
    padding = data.draw(st.sampled_from(["same", "valid", 0, 1, tuple(range(dimensions))]))
    layer = kind(
        groups * draw(1, 2),
        groups * draw(1, 2),
        kernel_size=tuple(draw(1, 3) for _ in range(dimensions)),
        stride=1 if padding == "same" else draw(1, 2),
        padding=padding,
        dilation=draw(1, 2),
        groups=groups,
        bias=data.draw(st.booleans()),
        padding_mode=data.draw(st.sampled_from(["zeros", "reflect", "circular"])),
        dtype=DOUBLE,
    )
    samples = data.draw(st.sampled_from([(), (1,), (3,)]))
    x = torch.randn(*samples, layer.in_channels, *[draw(5, 6) for _ in range(dimensions)], dtype=DOUBLE)
    assert compare(layer, x, 2 * x, frozen_input=data.draw(st.booleans())) == dict(layer.named_parameters()).keys()


def block() -> Block:
    return Block(8, 2).to(DOUBLE)


def test_a_transformer_block_whose_norms_do_not_wait():
    late = compare(block(), torch.randn(2, 5, 8, dtype=DOUBLE), torch.randn(1, 3, 8, dtype=DOUBLE))
    assert late == {name for name, _ in block().named_parameters() if "norm" not in name}


def test_without_an_input_half_nothing_waits():
    whole, halves = (module := block()), deferrable(copy.deepcopy(module))
    x, z = (torch.ones(2, 5, 8, dtype=DOUBLE, requires_grad=True) for _ in range(2))
    loss_of(whole(x)).backward()
    loss_of(halves(z)).backward()
    assert equal([x.grad, *gradients(whole)], [z.grad, *gradients(halves)])
    wanted = torch.autograd.grad(loss_of(halves(z)), [z, halves.mlp.up.weight])
    assert equal(list(wanted), [x.grad, whole.mlp.up.weight.grad])


class Shared(nn.Module):
    """One layer three times, its weight once more as it is, and a slice of a larger weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4, dtype=DOUBLE), nn.Linear(4, 4, dtype=DOUBLE)
        self.other.weight = self.layer.weight
        self.large = nn.Parameter(torch.randn(9, 4, dtype=DOUBLE))
        self.apart = nn.Linear(4, 4, bias=False, dtype=DOUBLE)
        self.apart.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layer(torch.tanh(self.layer(self.layer(x)))))
        for part in self.large.split([4, 4, 1])[:2]:
            x = torch.func.functional_call(self.apart, {"weight": part.T}, (x,))
        return self.other(x) @ self.layer.weight


def test_shared_weights_and_slices():
    assert "large" in compare(Shared(), *(torch.randn(3, 4, dtype=DOUBLE) for _ in range(3)))


def test_functional_call_reaches_the_weights_that_it_is_given():
    module = deferrable(block())
    leaves = {name: p.detach().requires_grad_() for name, p in module.named_parameters()}
    with input_half() as later:
        loss_of(torch.func.functional_call(module, leaves, (torch.ones(1, 2, 8, dtype=DOUBLE),))).backward()
    later.weight_half()
    plain = copy.deepcopy(module)
    loss_of(plain(torch.ones(1, 2, 8, dtype=DOUBLE))).backward()
    assert all(g is None for g in gradients(module))
    assert equal([leaf.grad for leaf in leaves.values()], gradients(plain))


def test_computed_weights_and_hooked_ones_do_not_wait_and_are_right():
    computed = weight_norm(nn.Linear(4, 4, dtype=DOUBLE))
    assert compare(computed, torch.randn(3, 4, dtype=DOUBLE)) == set()
    hooked, seen = deferrable(nn.Linear(4, 4, dtype=DOUBLE)), []
    hooked.weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    with input_half() as later:
        loss_of(hooked(torch.ones(2, 4, dtype=DOUBLE))).backward()
    later.weight_half()
    assert torch.equal(hooked.weight.grad, 2 * seen[0])
    assert len(seen) == 1


def test_a_hook_on_what_was_accumulated_runs_once():
    layer, seen = deferrable(nn.Linear(4, 4)), []
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    with input_half() as later:
        layer(layer(torch.ones(2, 4))).sum().backward()
    later.weight_half()
    assert len(seen) == 1
    assert torch.equal(seen[0], layer.weight.grad)


@pytest.mark.parametrize("layer", [nn.Linear(6, 5), nn.Conv2d(6, 5, 3), nn.Conv1d(6, 4, 2, groups=2)], ids=str)
def test_bfloat16(layer):
    x = torch.randn({nn.Linear: (7, 6), nn.Conv2d: (2, 6, 5, 5), nn.Conv1d: (2, 6, 5)}[type(layer)])
    compare(layer.bfloat16(), x.bfloat16(), tolerance=2**-6)


def test_autocast_is_left_to_autograd():
    layer, x = nn.Linear(6, 5), torch.randn(7, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [module(x) for module in (layer, deferrable(copy.deepcopy(layer)))]
    assert [y.dtype for y in outputs] == [torch.bfloat16] * 2
    wanted = [torch.autograd.grad(y.float().square().sum(), x)[0] for y in outputs]
    assert torch.equal(*wanted)


def test_an_activation_in_place_may_follow():
    compare(nn.Sequential(nn.Linear(4, 4, dtype=DOUBLE), nn.ReLU(inplace=True)), torch.randn(2, 3, 4, dtype=DOUBLE))


def test_what_was_changed_after_its_forward_is_refused():
    layer, x = deferrable(nn.Linear(4, 4)), torch.ones(2, 4, requires_grad=True)
    y = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"), input_half():
        y.sum().backward()


def test_it_is_prepared_once_copied_and_saved():
    module = deferrable(deferrable(block()))
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.mlp.up.weight.zero_()
    assert not torch.equal(module.mlp.up(torch.ones(1, 8, dtype=DOUBLE)), twin.mlp.up(torch.ones(1, 8, dtype=DOUBLE)))
    block().load_state_dict(module.state_dict())


def test_an_error_ends_the_input_half_and_one_in_another_is_refused():
    layer = deferrable(nn.Linear(4, 4))
    with pytest.raises(ZeroDivisionError), input_half():
        1 / 0  # noqa: B018
    with input_half(), pytest.raises(RuntimeError, match="an input half inside"), input_half():
        pass
    layer(torch.ones(2, 4)).sum().backward()
    assert layer.weight.grad is not None


def test_wrong_inputs_are_refused_as_ever():
    for layer, x in [(nn.Linear(4, 4), torch.ones(3, 3)), (nn.Conv2d(3, 3, 2), torch.ones(3))]:
        with pytest.raises(RuntimeError) as plain:
            layer(x)
        with pytest.raises(RuntimeError) as ours:
            deferrable(layer)(x)
        assert str(ours.value) == str(plain.value)


def test_nothing_is_computed_twice(monkeypatch):
    """Each half of each layer once: what makes this cheaper than to ask autograd twice."""
    calls = []
    for name in ("input_gradient", "weight_gradients"):
        real = getattr(split_backward.Linear, name)
        monkeypatch.setattr(
            split_backward.Linear, name, lambda *args, real=real, name=name: calls.append(name) or real(*args)
        )
    model = deferrable(nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]))
    with input_half() as later:
        F.tanh(model(torch.ones(2, 4))).sum().backward()
    assert calls == ["input_gradient"] * 2  # nobody wants that of the first layer
    later.weight_half()
    assert calls == ["input_gradient"] * 2 + ["weight_gradients"] * 3
