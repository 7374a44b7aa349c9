"""Weight policies of asynchronous pipelines, against a plain simulation that keeps every version of every weight."""

import weakref
from contextlib import ExitStack
from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from dtcourse import Cluster
from dtcourse.pipeline.actions import Kind
from dtcourse.pipeline.order import in_order
from dtcourse.pipeline.runner import Pipeline
from dtcourse.pipeline.schedules import pipedream
from dtcourse.pipeline.versions import Versions, versions_kept, weight_versions
from dtcourse.pipeline.weights import Naive, SpecTrain, Stashing

POLICIES = ["Naive", "Stashing", "SpecTrain"]
WIDTH, SAMPLES, LAYERS = 5, 4, 2  # of a stage


@pytest.fixture(autouse=True)
def doubles():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def mlp(stages, seed):
    """One module a stage: tanh after each layer."""
    torch.manual_seed(seed)
    layer = lambda: (nn.Linear(WIDTH, WIDTH), nn.Tanh())  # noqa: E731
    return [nn.Sequential(*(part for _ in range(LAYERS) for part in layer())) for _ in range(stages)]


def data(microbatches, seed):
    torch.manual_seed(1000 + seed)
    return torch.randn(2, microbatches, SAMPLES, WIDTH)


def loss_of(outputs, targets):
    return ((outputs - targets) ** 2).sum()


def sgd(parameters, lr=0.02, momentum=0.9, dampening=0.9, **options):
    return torch.optim.SGD(parameters, lr, momentum, dampening, **options)


def policies(name, modules, make_optimizer=sgd):
    """A policy for each stage."""
    optimizers = [make_optimizer(module.parameters()) for module in modules]
    if name == "SpecTrain":
        stages = len(modules)
        return [SpecTrain(*pair, s, stages) for s, pair in enumerate(zip(modules, optimizers, strict=True))]
    return [{"Naive": Naive, "Stashing": Stashing}[name](*pair) for pair in zip(modules, optimizers, strict=True)]


def drive(weights, schedule, x, y, watch=lambda action: None):
    """What the ranks do, in one process; activations stay alive to the end, to see what they keep. The losses."""
    inputs, outputs, gradients, losses = {}, {}, {}, []
    last = schedule.stages - 1
    for _, action in in_order(schedule):
        kind, m, s = action
        watch(action)
        if kind == Kind.FORWARD:
            inputs[m, s] = (x[m] if s == 0 else outputs[m, s - 1].detach()).clone().requires_grad_()
            outputs[m, s] = weights[s].call(m, inputs[m, s])
        else:
            with weights[s].backward(m):
                if s == last:
                    losses.append(loss_of(outputs[m, s], y[m]).detach())
                    loss_of(outputs[m, s], y[m]).backward()
                else:
                    torch.autograd.backward(outputs[m, s], gradients[m, s + 1])
            gradients[m, s] = inputs[m, s].grad
    return losses


class Simulated:
    """One stage by hand: all versions of its weights and momenta, and the formulas of an MLP."""

    def __init__(self, name, module, stage, stages, make_optimizer=sgd):
        self.name = name
        self.ahead = {"forward": stage // 2 + stages - stage - 1, "backward": stage // 2}
        self.newest = [weight.detach().clone() for weight in module.parameters()]  # W, b, W, b, ...
        self.optimizer = make_optimizer(self.newest)
        self.versions = [[weight.clone() for weight in self.newest]]
        self.momenta = [[torch.zeros_like(weight) for weight in self.newest]]
        self.lrs = [self.lr_now()]

    def lr_now(self):
        lr = {id(weight): group["lr"] for group in self.optimizer.param_groups for weight in group["params"]}
        return [lr[id(weight)] for weight in self.newest]

    def met(self, way, versions):
        """The weights of one way, forward or backward, of a micro-batch."""
        if self.name == "Stashing":
            return self.versions[versions.forward]
        at = getattr(versions, way)
        if self.name == "Naive":
            return self.versions[at]
        together = zip(self.versions[at], self.lrs[at], self.momenta[at], strict=True)
        return [weight - self.ahead[way] * lr * v for weight, lr, v in together]

    def forward(self, x, versions):
        weights = self.met("forward", versions)
        self.activations = [x]
        for W, b in zip(weights[::2], weights[1::2], strict=True):
            self.activations.append(torch.tanh(self.activations[-1] @ W.T + b))
        return self.activations[-1]

    def backward(self, d, versions):
        """Activations of the weights of the forward, weights of the backward: autograd would not mix them."""
        weights, gradients = self.met("backward", versions), []
        for layer in reversed(range(LAYERS)):
            x, y = self.activations[layer : layer + 2]
            d = d * (1 - y * y)
            gradients[:0] = [d.T @ x, d.sum(0)]
            d = d @ weights[2 * layer]
        self.update(gradients)
        return d

    def update(self, gradients):
        group = self.optimizer.param_groups[0]
        if self.name == "SpecTrain":
            g, dampening, sign = group["momentum"], group["dampening"], -1 if group["maximize"] else 1
            together = zip(gradients, self.versions[-1], strict=True)
            decayed = [sign * d + group["weight_decay"] * weight for d, weight in together]
            start = len(self.versions) == 1  # torch's first momentum is the gradient itself
            new = [d if start else g * v + (1 - dampening) * d for v, d in zip(self.momenta[-1], decayed, strict=True)]
            self.momenta.append(new)
        for weight, gradient in zip(self.newest, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()
        self.versions.append([weight.detach().clone() for weight in self.newest])
        self.lrs.append(self.lr_now())


def simulate_training(name, modules, schedule, x, y, make_optimizer=sgd):
    """Micro-batch after micro-batch, each on the versions that it meets; with more of them, the schedule once more."""
    stages = [Simulated(name, module, s, len(modules), make_optimizer) for s, module in enumerate(modules)]
    versions = weight_versions(schedule)
    for m in range(len(x)):
        again = m // schedule.microbatches * schedule.microbatches
        met = [Versions(*(version + again for version in versions[s][m - again])) for s in range(len(stages))]
        h = x[m]
        for stage, version in zip(stages, met, strict=True):
            h = stage.forward(h, version)
        d = 2 * (h - y[m])
        for stage, version in zip(reversed(stages), reversed(met), strict=True):
            d = stage.backward(d, version)
    return [stage.newest for stage in stages]


def largest_difference(stages, expected):
    """Both: for each stage its parameters, in order."""
    ours, theirs = ([weight.detach() for weights in side for weight in weights] for side in (stages, expected))
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


def parameters(modules):
    return [list(module.parameters()) for module in modules]


def check_against_simulation(name, stages, microbatches, seed, make_optimizer=sgd):
    modules, schedule = mlp(stages, seed), pipedream(stages, microbatches)
    x, y = data(microbatches, seed)
    expected = simulate_training(name, modules, schedule, x, y, make_optimizer)
    drive(policies(name, modules, make_optimizer), schedule, x, y)
    assert largest_difference(parameters(modules), expected) < 1e-10


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_as_a_simulation_with_all_versions(name, stages):
    for microbatches in (1, 2, 3, 7, 12):
        for seed in range(3):
            check_against_simulation(name, stages, microbatches, seed)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "options",
    [{"dampening": 0}, {"weight_decay": 0.1}, {"momentum": 0.5, "dampening": 0.2}, {"maximize": True}],
    ids=str,
)
def test_with_other_options_of_sgd(name, options):
    check_against_simulation(name, 4, 9, 0, partial(sgd, **options))


@pytest.mark.parametrize("name", POLICIES)
def test_each_parameter_group_has_its_learning_rate_and_a_scheduler_may_change_it(name):
    def two_groups(parameters):
        parameters = list(parameters)
        optimizer = sgd([{"params": parameters[::2], "lr": 0.01}, {"params": parameters[1::2], "lr": 0.04}])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        optimizer.register_step_post_hook(lambda *_: scheduler.step())
        return optimizer

    check_against_simulation(name, 4, 9, 0, two_groups)


@pytest.mark.parametrize("name", ["Naive", "Stashing"])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD])
def test_with_any_optimizer(name, optimizer):
    check_against_simulation(name, 4, 9, 0, partial(optimizer, lr=0.01))


def test_the_policies_differ_where_there_is_something_to_differ_in():
    after = {}
    for name in POLICIES:
        modules = mlp(3, seed=0)
        drive(policies(name, modules), pipedream(3, 6), *data(6, seed=0))
        after[name] = parameters(modules)
    for one, other in (("Naive", "Stashing"), ("Stashing", "SpecTrain"), ("Naive", "SpecTrain")):
        assert largest_difference(after[one], after[other]) > 1e-4


@pytest.mark.parametrize("name", POLICIES)
def test_one_stage_or_one_microbatch_is_plain_training(name):
    for stages, microbatches in ((1, 5), (3, 1)):
        modules, (x, y) = mlp(stages, seed=1), data(microbatches, seed=1)
        plain = deepcopy(nn.Sequential(*modules))
        optimizer = sgd(plain.parameters())
        for m in range(microbatches):
            optimizer.zero_grad()
            loss_of(plain(x[m]), y[m]).backward()
            optimizer.step()
        drive(policies(name, modules), pipedream(stages, microbatches), x, y)
        assert largest_difference(parameters(modules), parameters(plain)) < 1e-12


# -- on real ranks ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clusters():
    with ExitStack() as stack:
        yield {world: stack.enter_context(Cluster(world)) for world in (1, 2, 3, 4)}


def trained(name, stages, microbatches, seed):
    """The weights of this rank's stage after two steps."""
    torch.set_default_dtype(torch.float64)
    rank, modules, (x, y) = dist.get_rank(), mlp(stages, seed), data(2 * microbatches, seed)
    weights = {rank: policies(name, modules)[rank]}
    pipeline = Pipeline(pipedream(stages, microbatches), {rank: modules[rank]}, loss_of, weights=weights)
    for xs, ys in zip(x.chunk(2), y.chunk(2), strict=True):
        pipeline.step(list(xs), list(ys))
    return list(modules[rank].parameters())


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_on_real_ranks_as_the_simulation(clusters, stages):
    cases = [(name, stages, microbatches, seed) for name in POLICIES for microbatches in (1, 2, 7) for seed in (0, 1)]
    run = clusters[stages].run(lambda: [trained(*case) for case in cases])
    for number, (name, _, microbatches, seed) in enumerate(cases):
        x, y = data(2 * microbatches, seed)
        expected = simulate_training(name, mlp(stages, seed), pipedream(stages, microbatches), x, y)
        assert largest_difference([result[number] for result in run.results], expected) < 1e-10


@pytest.mark.parametrize("name", POLICIES)
def test_on_real_ranks_the_regions_say_the_version(clusters, name):
    stages, microbatches = 4, 9
    run = clusters[stages].run(trained, name, stages, microbatches, 0)
    told = {stage: {"forward": [], "backward": []} for stage in range(stages)}
    for event in run.events:
        if event.op in ("forward", "backward"):
            told[event.labels["stage"]][event.op].append(event.labels["version"])
    for stage, versions in enumerate(weight_versions(pipedream(stages, microbatches))):
        forward, backward = ([getattr(version, way) for version in versions] for way in ("forward", "backward"))
        forward, backward = ([*way, *(version + microbatches for version in way)] for way in (forward, backward))
        assert told[stage] == {"forward": forward, "backward": forward if name == "Stashing" else backward}


# -- versions: which, and how many ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_version_says_which_weights_an_action_meets(name, stages):
    schedule = pipedream(stages, 12)
    weights, told = policies(name, mlp(stages, seed=0)), {}
    drive(
        weights,
        schedule,
        *data(12, 0),
        lambda action: told.setdefault(action, weights[action.stage].version(action[1])),
    )
    for s, versions in enumerate(weight_versions(schedule)):
        for m, (forward, backward) in enumerate(versions):
            assert (forward, backward) == (max(0, m - (stages - 1 - s)), m)
            assert told[Kind.FORWARD, m, s] == forward
            assert told[Kind.BACKWARD, m, s] == (forward if name == "Stashing" else backward)
        assert weights[s].updates == 12


class Watched(nn.Linear):
    """Remembers, weakly, the weights that it has run on."""

    def forward(self, x):
        self.__dict__.setdefault("met", []).append(weakref.ref(self.weight))
        return super().forward(x)

    def copies(self):
        """How many pieces of memory hold a version of the weights now."""
        alive = [weight for ref in self.__dict__.get("met", ()) if (weight := ref()) is not None]
        return len({weight.data_ptr() for weight in (*alive, self.weight) if weight.numel()})


@pytest.mark.parametrize("name", POLICIES)
def test_no_more_versions_are_kept_than_needed(name):
    for stages in (1, 2, 3, 4):
        for microbatches in (1, 2, 3, 8):
            schedule = pipedream(stages, microbatches)
            modules = [Watched(WIDTH, WIDTH) for _ in range(stages)]
            weights, most = policies(name, modules), [0] * stages

            def count(*_, modules=modules, most=most):
                most[:] = map(max, most, (module.copies() for module in modules))

            for policy in weights:
                policy.optimizer.register_step_pre_hook(count)
                policy.optimizer.register_step_post_hook(count)
            drive(weights, schedule, *data(microbatches, 0), watch=count)
            kept = versions_kept(schedule) if name == "Stashing" else (1,) * stages
            assert tuple(most) == kept
            assert [module.copies() for module in modules] == [1] * stages


def test_stashing_gives_a_version_back_with_the_last_who_needs_it():
    module = Watched(WIDTH, WIDTH)
    stash = Stashing(module, sgd(module.parameters()))
    outputs = [stash.call(m, torch.ones(1, WIDTH)) for m in range(3)]  # all on version 0
    seen, places = [], [module.weight.data_ptr()]
    for m, output in enumerate(outputs):
        with stash.backward(m):
            output.sum().backward()
        seen.append(module.copies())
        places.append(module.weight.data_ptr())
    assert seen == [2, 2, 1]
    assert places[0] != places[1] == places[2] == places[3], "only the first update had to spare a version"


# -- what is no weight ------------------------------------------------------------------------------------------------


def test_stashing_with_drop_out_and_batch_norm_is_autograd_at_the_weights_of_the_forward():
    stages, microbatches = 3, 8
    torch.manual_seed(0)
    modules = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Tanh()) for _ in range(stages)
    ]
    plain, schedule, (x, y) = deepcopy(modules), pipedream(stages, microbatches), data(microbatches, seed=0)

    def seeded(module, action):  # a mask that depends on stage and micro-batch, whatever the order
        module.register_forward_pre_hook(lambda *_: torch.manual_seed(action[0] + 100 * action[1]) and None)

    current = [[0, s] for s in range(stages)]
    for s in range(stages):
        seeded(modules[s], current[s])
        seeded(plain[s], current[s])

    optimizers = [sgd(module.parameters()) for module in plain]
    history = [[dict(deepcopy(module).named_parameters())] for module in plain]
    for m in range(microbatches):
        h, used = x[m], []
        for s, module in enumerate(plain):
            current[s][0] = m
            used.append(history[s][weight_versions(schedule)[s][m].forward])
            h = functional_call(module, used[-1], h)
        loss_of(h, y[m]).backward()
        for s, module in enumerate(plain):
            for name, weight in module.named_parameters():
                weight.grad, used[s][name].grad = used[s][name].grad, None
            optimizers[s].step()
            history[s].append(dict(deepcopy(module).named_parameters()))

    def set_microbatch(action):
        current[action.stage][0] = action.microbatch

    drive(policies("Stashing", modules), schedule, x, y, set_microbatch)
    for module, expected in zip(modules, plain, strict=True):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=1e-10)
        assert module[1].num_batches_tracked == microbatches


@pytest.mark.parametrize("name", POLICIES)
def test_layers_of_every_kind_can_be_gone_back_through(name):
    """Convolutions, recurrence, attention: autograd does not refuse what the updates in between have changed."""
    for module, shape in (
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.GroupNorm(1, 2)), (2, 1, 5, 5)),
        (nn.LSTM(3, 4), (2, 3, 3)),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (2, 3, 4)),
    ):
        policy = policies(name, [module])[0]
        results = [policy.call(m, torch.randn(shape)) for m in range(3)]
        before = [weight.detach().clone() for weight in module.parameters()]
        for m, result in enumerate(results):
            with policy.backward(m):
                (result[0] if isinstance(result, tuple) else result).pow(3).sum().backward()
        assert all(not torch.equal(weight, old) for weight, old in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("name", POLICIES)
def test_tied_frozen_and_unused_parameters(name):
    module = nn.Module()
    module.first, module.second, module.frozen, module.unused = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
    module.second.weight = module.first.weight
    module.frozen.weight.requires_grad_(False)
    module.forward = lambda x: module.frozen(module.second(torch.tanh(module.first(x))))
    policy, before = policies(name, [module])[0], deepcopy(module.state_dict())
    x = torch.randn(2, WIDTH)
    expected = torch.autograd.grad(module(x).sum(), module.first.weight)[0]
    output = policy.call(0, x)
    with policy.backward(0):
        output.sum().backward()
    torch.testing.assert_close(module.first.weight.grad, expected)
    assert module.frozen.weight.grad is None and module.unused.weight.grad is None
    changed = {key for key, value in module.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"first.weight", "second.weight"}


# -- what is promised at the edges of an action -----------------------------------------------------------------------


def test_spectrain_brings_the_true_weights_back():
    module = nn.Linear(WIDTH, WIDTH)
    policy = SpecTrain(module, sgd(module.parameters()), stage=2, stages=4)
    x = torch.randn(2, WIDTH)
    for m in range(3):
        before = module.weight.detach().clone()
        with torch.no_grad():
            plain = module(x)
        output = policy.call(m, x)
        assert torch.equal(module.weight, before)
        assert torch.equal(output, plain) == (m == 0)  # without a momentum the prediction is W
        with policy.backward(m):
            assert torch.equal(module.weight, before) == (m == 0)
            output.sum().backward()
        v = policy.optimizer.state[module.weight]["momentum_buffer"]
        torch.testing.assert_close(module.weight, before - 0.02 * v, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_raised_in_a_backward_leaves_the_weights_alone(name):
    module = nn.Linear(WIDTH, WIDTH)
    policy = policies(name, [module, nn.Linear(1, 1), nn.Linear(1, 1)])[0]
    for m in range(2):
        output = policy.call(m, torch.ones(1, WIDTH))
        before = module.weight.detach().clone()
        if m:
            with pytest.raises(ZeroDivisionError), policy.backward(m):
                raise ZeroDivisionError
            assert torch.equal(module.weight, before) and policy.updates == m
        else:
            with policy.backward(m):
                output.sum().backward()


@pytest.mark.parametrize("name", POLICIES)
def test_a_backward_without_its_forward_is_refused(name):
    module = nn.Linear(1, 1)
    policy = policies(name, [module])[0]
    policy.call(3, torch.ones(1, 1))
    output = policy.call(4, torch.ones(1, 1))
    with pytest.raises(ValueError, match=r"backward of micro-batch 5.*in flight.* are: 3, 4"), policy.backward(5):
        pass
    with policy.backward(4):
        output.sum().backward()
    with pytest.raises(ValueError, match=r"backward of micro-batch 4.* are: 3$"), policy.backward(4):
        pass


@pytest.mark.parametrize("name", POLICIES)
def test_an_optimizer_of_all_stages_is_refused(name):
    modules = mlp(2, seed=0)
    with pytest.raises(ValueError, match="4 parameters that are not of this stage's module"):
        policies(name, modules, lambda _: sgd(nn.Sequential(*modules).parameters()))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (torch.optim.Adam, TypeError, r"Adam moves its weights otherwise.*momentum=0\.9, dampening=0\.9"),
        (partial(torch.optim.SGD, lr=0.1), ValueError, "momentum=0, nesterov=False"),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True), ValueError, "nesterov=True"),
    ],
)
def test_spectrain_refuses_what_it_cannot_predict(make, error, message):
    with pytest.raises(error, match=message):
        policies("SpecTrain", mlp(1, seed=0), make)


@pytest.mark.parametrize("stage", [-1, 4])
def test_spectrain_refuses_a_stage_that_is_none(stage):
    module = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=f"no stage {stage} of 4; they are 0 to 3"):
        SpecTrain(module, sgd(module.parameters()), stage, 4)
