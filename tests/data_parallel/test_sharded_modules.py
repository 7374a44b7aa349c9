"""ZeRO 1 to 3 on real ranks: the weights of one process, exactly the formula's bytes, and nothing kept too long."""

from __future__ import annotations

import itertools
import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
import trained_models
from sharded_models import OPTIMIZERS, Model, alone, batches, difference, model, together
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dtcourse.data_parallel.flat_parameters as flat_file
import dtcourse.data_parallel.fully_sharded as fully_sharded_file
from dtcourse import RankError, per_rank
from dtcourse.collectives.ring import chunks_of
from dtcourse.data_parallel.flat_parameters import FlatParameters
from dtcourse.data_parallel.fully_sharded import FullySharded
from dtcourse.data_parallel.sharded import Sharded

WORLDS = range(1, 6)
KINDS = {1: Sharded, 2: Sharded, 3: FullySharded}
SGD = partial(torch.optim.SGD, lr=0.1)


def layers(*widths):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(widths)]).double()


def every_stage(names):
    return {(stage, name): together(stage, OPTIMIZERS[name]) for stage in KINDS for name in names}


@pytest.mark.parametrize("world", WORLDS)
def test_twenty_steps_give_the_weights_and_the_state_of_one_process(cluster_of, world):
    names = ["sgd", "adamw"] if world == 3 else ["sgd"]
    for states in cluster_of(world).run(every_stage, names).results:
        for (stage, name), state in states.items():
            assert difference(state, alone(world, OPTIMIZERS[name])) < 1e-12, f"stage {stage}, {name}"


def test_a_branch_that_only_some_ranks_use(cluster_of):
    def job(stage, steps):
        module = trained_models.Model()
        units = [child for name, child in module.named_children() if name != "rarely"] if stage == 3 else None
        sharded = KINDS[stage](module, trained_models.sgd, stage=stage, units=units)
        for parts in steps:
            batch = parts[dist.get_rank()]
            with sharded.step(share=len(batch) / sum(map(len, parts))):
                if len(batch):
                    trained_models.loss_of(module, batch).backward()
        return sharded.state_dict()["module"]

    for stage in KINDS:
        steps = trained_models.batches(3, everybody=stage == 3)
        for weights in cluster_of(3).run(job, stage, steps).results:
            assert trained_models.difference(weights, trained_models.alone(steps)) < 1e-12


def test_on_gloo(cluster_of):
    for states in cluster_of(3, "gloo").run(every_stage, ["adam"]).results:
        assert all(difference(state, alone(3, OPTIMIZERS["adam"])) < 1e-12 for state in states.values())


def test_in_a_subgroup(cluster_of):
    def job():
        group = dist.new_group([1, 2, 4])
        return every_stage_of(group) if dist.get_rank() in (1, 2, 4) else None

    def every_stage_of(group):
        return [together(stage, OPTIMIZERS["sgd"], group=group, steps=4) for stage in KINDS]

    results = cluster_of(5).run(job).results
    for rank in (1, 2, 4):
        assert all(difference(state, alone(3, OPTIMIZERS["sgd"], steps=4)) < 1e-12 for state in results[rank])


def everything(tensor, group=None):
    """A reduce-scatter that completes all chunks, which is more than it has to."""
    dist.all_reduce(tensor, group=group)


def by_broadcasts(tensor, group=None):
    """An all-gather in which each owner gives its chunk to all."""
    world = dist.get_world_size(group)
    for number, chunk in enumerate(chunks_of(tensor, world)):
        dist.broadcast(chunk, group_src=(number - 1) % world, group=group)


def test_with_another_reduce_scatter_and_all_gather(cluster_of):
    def job():
        exchanges = {"reduce_scatter": everything, "all_gather": by_broadcasts}
        return [together(stage, OPTIMIZERS["adam"], steps=4, **exchanges) for stage in KINDS]

    for states in cluster_of(3).run(job).results:
        assert all(difference(state, alone(3, OPTIMIZERS["adam"], steps=4)) < 1e-12 for state in states)


def test_a_saved_state_goes_on_in_another_world(cluster_of):
    def job(states):
        return [together(stage, OPTIMIZERS["adam"], first=6, state=states[stage]) for stage in KINDS]

    def stopped(module_steps):
        return {stage: together(stage, OPTIMIZERS["adam"], steps=module_steps) for stage in KINDS}

    saved = cluster_of(2).run(stopped, 6).results[0]
    assert all(difference(state, saved[1]) < 1e-12 for state in saved.values())
    Model().double().load_state_dict(saved[3]["module"])  # as that of a module that was never sharded
    for state in saved.values():
        state["module"]["frozen.bias"] += 1  # what is not trained comes along, too
    crossed = [{1: saved[3], 2: saved[1], 3: saved[2]} for _ in range(3)]
    first, *others = cluster_of(3).run(job, per_rank(crossed)).results[0]
    assert all(difference(state, first) < 1e-12 for state in others)
    assert difference(first, saved[1]) > 1e-3  # it did go on
    assert torch.equal(first["module"]["frozen.bias"], saved[1]["module"]["frozen.bias"])


# -- bytes -----------------------------------------------------------------------------------------------------------


def trained_for_two_steps(stage):
    module = layers(3, 4, 1, 5)
    sharded = KINDS[stage](module, SGD, stage=stage)
    for _ in range(2):
        with sharded.step():
            module(torch.ones(2, 3, dtype=torch.float64)).sum().backward()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("stage", KINDS)
def test_bytes_sent_are_the_formula(cluster_of, stage, world):
    run = cluster_of(world).run(trained_for_two_steps, stage)
    gathers = 2 if stage == 3 else 1
    for rank in range(world):
        expected = 0
        for elements in (16, 5, 10):  # the units; 5 ranks do not divide the first, nor others the rest
            c = [8 * chunk.numel() for chunk in chunks_of(torch.empty(elements), world)]
            expected += sum(c) - c[(rank + 1) % world] + gathers * (sum(c) - c[(rank + 2) % world])
        assert run.bytes_sent(rank) == (2 * expected if world > 1 else 0)


def test_what_nobody_uses_is_not_decayed(cluster_of):
    def job(stage):
        module = nn.ModuleDict({"used": layers(2, 3), "idle": layers(40, 40)})
        before = module["idle"][0].weight.detach().clone()
        optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
        sharded = KINDS[stage](module, optimizer, stage=stage)
        with sharded.step():
            module["used"](torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        return torch.equal(sharded.state_dict()["module"]["idle.0.weight"], before)

    for stage in KINDS:
        assert cluster_of(2).run(job, stage).results == [True, True]


# -- samples: shares, none, accumulated ------------------------------------------------------------------------------


def test_a_rank_without_samples(cluster_of):
    def job(stage):
        module = layers(3, 2)
        sharded = KINDS[stage](module, SGD, stage=stage)
        x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
        idle = dist.get_rank() == 1
        with sharded.step(share=[0.5, 0, 0.5][dist.get_rank()]):
            if stage == 3 or not idle:
                module(x * torch.nan if idle else x + dist.get_rank()).square().mean().backward()
        return sharded.state_dict()["module"]

    module = layers(3, 2)
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    module(torch.cat([x, x + 2])).square().mean().backward()
    SGD(module.parameters()).step()
    for stage in KINDS:
        for state in cluster_of(3).run(job, stage).results:
            assert all(torch.allclose(state[name], value) for name, value in module.state_dict().items())


def test_earlier_backwards_accumulate_and_send_nothing(cluster_of):
    def job(stage):
        module = model()
        sharded = KINDS[stage](module, OPTIMIZERS["sgd"], stage=stage)
        x, y = batches(2, 1)[dist.get_rank()]
        before = {name: value.clone() for name, value in sharded.state_dict()["module"].items()}
        (cross_entropy(module(x, 1), y) / 2).backward()  # step 1 uses a layer that step 0 does not
        unchanged = sharded.state_dict()["module"]
        x, y = batches(2, 0)[dist.get_rank()]
        with sharded.step():
            (cross_entropy(module(x, 0), y) / 2).backward()
        return all(torch.equal(unchanged[name], value) for name, value in before.items()), sharded.state_dict()

    module = model()
    losses = [cross_entropy(module(x, s), y) for s in (0, 1) for x, y in batches(2, s)]
    (sum(losses) / 4).backward()
    parameters = [p for p in module.parameters() if p.requires_grad]
    OPTIMIZERS["sgd"](parameters).step()
    for stage in KINDS:
        for unchanged, state in cluster_of(2).run(job, stage).results:
            assert unchanged
            ours = state["module"]
            assert all((ours[name] - value).abs().max() < 1e-12 for name, value in module.state_dict().items()), stage


def test_a_second_backward_in_the_block_is_refused(cluster_of):
    def job(stage):
        module = layers(2, 2, 2)
        with KINDS[stage](module, SGD, stage=stage).step():
            for _ in range(2):
                module(torch.ones(1, 2, dtype=torch.float64)).sum().backward()

    for stage in (2, 3):
        with pytest.raises(RankError, match="a second gradient of 1.* in one step"):
            cluster_of(2).run(job, stage)


# -- stage 3: units come and go --------------------------------------------------------------------------------------


def trained_for_one_step(stage=3):
    module = layers(3, 3, 3, 3)
    sharded = KINDS[stage](module, SGD, stage=stage)
    with sharded.step():
        module(torch.ones(2, 3, dtype=torch.float64, requires_grad=True)).sum().backward()


def test_the_table_of_gathers_and_frees(cluster_of):
    run = cluster_of(2).run(trained_for_one_step)
    letters = {"gather": "G", "reduce-scatter": "R", "free": "x"}
    for rank in range(2):
        events = [e for e in run.events if e.rank == rank and e.op in letters][3:]  # the first frees: what it sharded
        done = [letters[e.op] + e.labels["unit"] for e in sorted(events, key=lambda e: e.posted)]
        lines = fully_sharded_file.__doc__.splitlines()
        table = " ".join(line.split("   ", 1)[1] for line in lines if re.match(r"    (for|back)ward ", line))
        assert done == [cell for cell in table.split() if cell[0] in "GRx" and cell[1].isdigit()]


def test_stage_2_exchanges_during_the_backward_and_stage_1_after_it(cluster_of):
    def job(stage):
        module = layers(3, 3, 3)
        sharded = Sharded(module, SGD, stage=stage)
        with sharded.step():
            module(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
            return [flat.reduced is None for flat in sharded.flats], [flat.gradient is None for flat in sharded.flats]

    assert cluster_of(2).run(job, 1).results == [([True, True], [False, False])] * 2
    assert cluster_of(2).run(job, 2).results == [([False, False], [True, True])] * 2


class Backwards(nn.Module):
    """Its layers are called in another order than it names them."""

    def __init__(self):
        super().__init__()
        self.second, self.first = layers(3, 2), layers(4, 3)

    def forward(self, x):
        return self.second(self.first(x))


def test_units_that_are_called_in_another_order(cluster_of):
    def job(stage):
        module = Backwards()
        sharded = KINDS[stage](module, SGD, stage=stage)
        with sharded.step():
            module(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
        return sharded.state_dict()["module"]

    module = Backwards()
    module(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    SGD(module.parameters()).step()
    for stage in KINDS:
        for state in cluster_of(2).run(job, stage).results:
            assert all(torch.allclose(state[name], value) for name, value in module.state_dict().items())


def test_between_the_steps_a_parameter_is_nan_and_takes_no_memory(cluster_of):
    def job():
        module = model()
        sharded = FullySharded(module, SGD)
        with sharded.step(), torch.no_grad():
            x, y = batches(2, 0)[dist.get_rank()]
            loss = cross_entropy(module(x, 0), y)
        return loss, [p.isnan().all().item() for p in module.parameters()], [f.whole for f in sharded.flats]

    for loss, absent, whole in cluster_of(2).run(job).results:
        assert loss.isfinite() and all(absent) and not any(whole)


class Checkpointed(nn.Module):
    """Two layers, of which the second is computed again in the backward; its input is also a shortcut and an output."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers(4, 4), layers(4, 4)

    def forward(self, x):
        y = self.first(x)
        return {"sum": y + checkpoint(self.second, y, use_reentrant=False), "y": y}


def test_activation_checkpointing(cluster_of):
    def train(sharded, module):
        x = torch.arange(8.0, dtype=torch.float64).view(2, 4)
        with sharded.step():
            outputs = module(x)
            (outputs["sum"].tanh().sum() + outputs["y"].sum()).backward()
        return sharded.state_dict()["module"]

    def job():
        modules = Checkpointed(), Checkpointed()
        return [train(kind(module, SGD), module) for kind, module in zip((Sharded, FullySharded), modules, strict=True)]

    for one, three in cluster_of(2).run(job).results:
        assert all(torch.allclose(one[name], three[name]) for name in one)


def test_a_step_that_fails_leaves_nothing_behind(cluster_of):
    def job(stage):
        module = layers(3, 3, 3)
        sharded = KINDS[stage](module, SGD, stage=stage)
        x = torch.ones(2, 3, dtype=torch.float64)
        module(x).sum().backward()  # accumulates, for a step that never comes
        for backward in (False, True):
            try:
                with sharded.step():
                    if backward:
                        (module(x) * torch.nan).sum().backward()
                    raise KeyError("no such batch")
            except KeyError:
                assert stage < 3 or not any(flat.whole for flat in sharded.flats)
                assert all(parameter.grad is None for parameter in module.parameters())
        with sharded.step():
            module(x).sum().backward()
        return sharded.state_dict()["module"]

    module = layers(3, 3, 3)
    module(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    SGD(module.parameters()).step()
    for stage in KINDS:
        for state in cluster_of(2).run(job, stage).results:
            assert all(torch.allclose(state[name], value) for name, value in module.state_dict().items())


# -- what is refused -------------------------------------------------------------------------------------------------


class Normed(torch.optim.SGD):
    """As LARS: the step of an element depends on the norm of its parameter."""

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad /= parameter.norm()
        super().step()


def nested():
    module = nn.Sequential(layers(2, 2))
    return {"module": module, "units": [module[0], module[0][0]]}


def already():
    module = layers(2, 2, 2)
    FullySharded(module, SGD)
    return {"module": module}


def differently():
    module = layers(2, 2)
    nn.init.constant_(module[0].bias, dist.get_rank())
    return {"module": module}


REFUSED = {
    "L-BFGS": (lambda: {"make_optimizer": torch.optim.LBFGS}, "cannot step a part of a parameter"),
    "Adafactor": (lambda: {"make_optimizer": torch.optim.Adafactor}, "not elementwise|cannot step a part"),
    "LARS": (lambda: {"make_optimizer": partial(Normed, lr=0.1)}, "this optimizer is not elementwise"),
    "an optimizer": (
        lambda: {"make_optimizer": SGD(layers(2, 2).parameters())},
        "make_optimizer is SGD: pass what makes",
    ),
    "other parameters": (lambda: {"make_optimizer": lambda _: SGD(layers(2, 2).parameters())}, "and no others"),
    "no optimizer": (lambda: {"make_optimizer": lambda _: None}, "make_optimizer returned NoneType"),
    "stage": (lambda: {"stage": 4}, "stage=4: "),
    "nothing to train": (lambda: {"module": layers(2, 2).requires_grad_(False)}, "no parameters to train"),
    "sharded": (already, "is the module sharded already"),
    "values": (differently, "0.weight, 0.bias: not all ranks hold the same values"),
    "nested units": (nested, "0.0 lies inside 0: no parameter can belong to both"),
    "foreign units": (lambda: {"units": [nn.Linear(1, 1)]}, "a Linear that is no part of the module"),
}


def test_a_list_of_modules_is_no_unit_but_what_lies_in_it_is(cluster_of):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([layers(2, 2), layers(2, 2)])

        def forward(self, x):
            return self.layers[1](self.layers[0](x))

    def job():
        module = Listed()
        sharded = FullySharded(module, SGD)
        with sharded.step(), torch.no_grad():
            finite = module(torch.ones(1, 2, dtype=torch.float64)).isfinite().all().item()
        try:
            FullySharded(Listed(), SGD, units=[])
            FullySharded((other := Listed()), SGD, units=[other.layers])
        except ValueError as problem:
            return finite, [unit.name for unit in sharded.units], str(problem)

    for finite, units, refused in cluster_of(2).run(job).results:
        assert finite and units == ["layers.0", "layers.1"]
        assert refused == "layers, a ModuleList, is never called: make units of what is called in it"


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused(cluster_of, what):
    make, message = REFUSED[what]

    def job():
        for kind in (Sharded, FullySharded):
            try:
                kind(**{"module": layers(2, 2), "make_optimizer": SGD} | make())
            except (TypeError, ValueError) as problem:
                refused = str(problem)
            else:
                refused = ""
            assert re.search(message, refused), (kind, refused)

    cluster_of(2).run(job)


def test_a_share_that_is_none_is_refused(cluster_of):
    def job():
        for kind in (Sharded, FullySharded):
            with (
                pytest.raises(ValueError, match=r"share=3: a rank's share .* between 0 and 1"),
                kind(layers(2, 2), SGD).step(3),
            ):
                pass

    cluster_of(2).run(job)


def test_a_sparse_gradient_is_refused(cluster_of):
    def job():
        module = nn.Embedding(3, 2, sparse=True)
        with Sharded(module, SGD, units=[]).step():
            module(torch.tensor([1])).sum().backward()

    with pytest.raises(RankError, match="weight has a gradient of layout torch.sparse_coo: sparse=False"):
        cluster_of(1).run(job)


def test_a_parameter_thawed_later_is_refused(cluster_of):
    def job():
        module = model()
        sharded = Sharded(module, SGD)
        module.frozen.requires_grad_(True)
        with sharded.step():
            pass

    with pytest.raises(RankError, match="frozen.weight was frozen when it was sharded"):
        cluster_of(1).run(job)


# -- the row ---------------------------------------------------------------------------------------------------------


def test_the_table_of_the_row(cluster_of):
    def job():
        module = nn.Linear(3, 2)
        flat = FlatParameters("w and b", {"w": module.weight, "b": module.bias}, None)
        return [f"{n}{i}" for n, p in flat.pieces.items() for i in range(*flat_range(flat, n, p))]

    def flat_range(flat, name, piece):
        whole = torch.arange({"w": 6, "b": 2}[name])
        mine = flat.piece_of(name, whole)
        assert mine.numel() == piece.numel()
        return (int(mine[0]), int(mine[-1]) + 1) if mine.numel() else (0, 0)

    lines = flat_file.__doc__.splitlines()
    row = next(line.split("row")[1] for line in lines if "3 ranks:" in line).split("|")
    owners = [int(n) for n in re.findall(r"rank (\d)", next(line for line in lines if "owner" in line))]
    results = cluster_of(3).run(job).results
    assert {owner: chunk.split() for owner, chunk in zip(owners, row, strict=True)} == dict(enumerate(results))
