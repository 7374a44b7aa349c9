"""`Run`: saved, loaded, exported."""

from __future__ import annotations

import itertools
import json
import pickle
import time
import zipfile

import pytest
import torch
import torch.distributed as dist

from dtcourse import Cluster, Run, mark, per_rank, provenance, raw, region
from dtcourse.collectives.ring import ring_all_reduce
from dtcourse.events import MARK, RECV, SEND, Event


@pytest.fixture(scope="module")
def run():
    def function(x):
        with region("exchange", number=3):
            ring_all_reduce(x)
        dist.barrier()
        print("done")
        return {"sum": x, "rank": dist.get_rank(), "odd": {1, 2}}

    with Cluster(4) as cluster:
        return cluster.run(function, per_rank([provenance(4, rank, 6) for rank in range(4)]), watch=True)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_saved_run_is_the_same_run(run, tmp_path):
    loaded = Run.load(run.save(tmp_path / "ring.run"))
    assert (loaded.world_size, loaded.function, loaded.outputs) == (4, "function", ["done\n"] * 4)
    assert loaded.sources == run.sources and any("ring.py" in name for name in run.sources)
    for mine, its in zip(run.events, loaded.events, strict=True):
        for name in mine.__slots__:
            assert same(getattr(mine, name), getattr(its, name)), name
    assert torch.equal(loaded.results[2]["sum"], run.results[2]["sum"]) and loaded.results[2]["odd"] == "{1, 2}"
    assert loaded.source_line(loaded.messages()[0].line) == run.source_line(run.messages()[0].line) != ""


def test_nothing_in_the_file_can_run_code(run, tmp_path):
    with zipfile.ZipFile(run.save(tmp_path / "ring.run")) as archive:
        names = archive.namelist()
        assert all(n == "run.json" or n.startswith(("tensors/", "sources/")) for n in names)
        for name in names:
            with pytest.raises(Exception):  # noqa: B017 - whatever pickle says
                pickle.loads(archive.read(name))


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04"])
def test_a_file_that_is_no_run(tmp_path, content):
    (tmp_path / "x.run").write_bytes(content)
    with pytest.raises(ValueError, match="is not a saved run"):
        Run.load(tmp_path / "x.run")


@pytest.mark.parametrize(
    "document",
    [{}, {"format": 99}, {"format": 1}, {"format": 1, "world_size": 1, "results": {"tensor": "x", "dtype": "load"}}],
)
def test_a_zip_that_is_no_run(tmp_path, document):
    with zipfile.ZipFile(tmp_path / "x.run", "w") as archive:
        archive.writestr("run.json", json.dumps(document))
    with pytest.raises(ValueError, match="is not a saved run"):
        Run.load(tmp_path / "x.run")


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 10**12},
        {"world_size": "4"},
        {"results": {"tensor": "../../etc/passwd", "dtype": "int64", "shape": [1]}},
        {"results": {"tensor": "tensors/0", "dtype": 7, "shape": [1]}},
        {"results": {"tensor": "tensors/0", "dtype": "int64", "shape": [10**15]}},
        {"results": {"list": [{"tensor": "tensors/0", "dtype": "int64", "shape": [6]}] * 2}},
        {"events": [{"line": None}]},
        {"events": "many"},
    ],
)
def test_a_file_that_somebody_made_up(run, tmp_path, change):
    path = run.save(tmp_path / "ring.run")
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["run.json"] = json.dumps(json.loads(content["run.json"]) | change).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw_content in content.items():
            archive.writestr(name, raw_content)
    with pytest.raises(ValueError, match="is not a saved run"):
        Run.load(path)


def test_a_small_file_that_would_fill_the_memory(run, tmp_path):
    path = run.save(tmp_path / "bomb.run")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tensors/bomb", bytes(100 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match=r"is not a saved run: 104,.* bytes, unpacked, and 67,108,864 are the most"):
        Run.load(path)


def test_a_run_that_shrinks_to_nothing_can_be_loaded_all_the_same(tmp_path):
    zeros = torch.zeros(25 << 20)
    loaded = Run.load(Run(1, results=[zeros]).save(tmp_path / "zeros.run"))
    assert torch.equal(loaded.results[0], zeros)


def test_the_chrome_trace(run, tmp_path):
    events = json.loads(run.chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    starts, ends = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert len(starts) == len(ends) == len(run.messages()) == 24
    for start, end in zip(starts, ends, strict=True):
        assert start["id"] == end["id"] and start["pid"] != end["pid"] and start["ts"] <= end["ts"]
        for arrow in (start, end):  # it binds to the slice around its point
            assert any(
                s["pid"] == arrow["pid"] and s["tid"] == arrow["tid"] and s["ts"] <= arrow["ts"] <= s["ts"] + s["dur"]
                for s in events
                if s["ph"] == "X"
            )
    for rank in range(4):  # Perfetto drops slices of a track that overlap without one containing the other
        for tid in {e["tid"] for e in events if e["ph"] == "X" and e["pid"] == rank}:
            track = sorted(
                (e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (rank, tid)
            )
            assert tid == 0 or all(a[1] <= b[0] for a, b in itertools.pairwise(track))
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {f"rank {r}" for r in range(4)}
    assert sum(e["name"] == "exchange" for e in events if e["ph"] == "X") == 4


def test_a_loss_that_is_no_number_does_not_spoil_the_trace(tmp_path):
    with Cluster(1) as cluster:
        run = cluster.run(lambda: mark("loss", value=float("nan")))
    (loss,) = [
        e for e in json.loads(run.chrome_trace(tmp_path / "t.json").read_text())["traceEvents"] if e["name"] == "loss"
    ]
    assert loss["args"] == {"value": "nan"}


def test_traffic(run):
    matrix = run.traffic_matrix()
    assert matrix.sum() == sum(run.bytes_sent(rank) for rank in range(4))
    assert all(matrix[r, (r + 1) % 4] == run.bytes_sent(r) for r in range(4))


@pytest.mark.filterwarnings("ignore")  # torch calls some of these kinds new, and others old
def test_tensors_of_every_kind_are_saved(tmp_path):
    z = torch.tensor([1 + 2j, 3 - 4j])
    kinds = {
        "conjugate": z.conj(),
        "negative": z.conj().imag,
        "sparse": torch.eye(2).to_sparse(),
        "compressed": torch.eye(2).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "meta": torch.ones(2, device="meta"),
    }
    loaded = Run.load(Run(1, results=[kinds]).save(tmp_path / "kinds.run")).results[0]
    assert torch.equal(loaded.pop("conjugate"), z.conj()) and torch.equal(loaded.pop("negative"), z.conj().imag)
    assert loaded == {name: repr(kinds[name]) for name in loaded}


def test_a_watched_run_of_tensors_that_cannot_be_kept():
    with Cluster(1) as cluster:
        run = cluster.run(lambda sparse, x: dist.barrier(), torch.eye(2).to_sparse(), torch.ones(1), watch=True)
    assert [e.arguments for e in run.events] == [(torch.ones(1),)] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int8"])
@pytest.mark.parametrize("make", [lambda x: x[0, 0], lambda x: x[:1, 0], lambda x: x.t(), lambda x: x[:0], lambda x: x])
def test_raw_bytes_and_back(dtype, make):
    x = make(torch.tensor([[1, 0, 1], [0, 1, 1]]).to(getattr(torch, dtype)))
    (back,) = raw.unpack(raw.pack([x]))
    assert back.dtype == x.dtype and back.shape == x.shape and torch.equal(back, x)


def test_what_reached_a_rank(run):
    assert [run.bytes_received(rank) for rank in range(4)] == run.traffic_matrix().sum(0).tolist()


def test_what_never_arrived_was_not_received():
    lost = [Event(0, 0, SEND, "send", (0, 1), peer=1, bytes=8), Event(1, 0, RECV, "recv", (0, 1), peer=0, bytes=8)]
    run = Run(2, events=lost)
    assert (run.bytes_sent(0), run.bytes_received(1)) == (8, 0)


def test_waits_that_overlap_count_once():
    def wait(rank, since, until):
        ended = until and until * 10**9
        return Event(rank, 0, RECV, "recv", posted=since * 10**9, wait_from=since * 10**9, wait_to=ended, ended=ended)

    whole = [
        Event(0, 9, MARK, "begin", posted=0, ended=0),
        wait(0, 1, 4),
        wait(0, 2, 3),
        wait(0, 3, 6),
        wait(1, 7, None),
    ]
    run = Run(3, events=whole, seconds=10.0)
    assert run.span == (0, 10 * 10**9)
    assert [run.waited(rank) for rank in range(3)] == [5.0, 3.0, 0.0]


def test_what_a_rank_really_waited():
    def meet():
        if dist.get_rank() == 1:
            time.sleep(0.05)
        dist.barrier()

    with Cluster(2) as cluster:
        run = cluster.run(meet)
    (barrier,) = (e for e in run.events if e.rank == 0 and e.wait_from is not None)
    assert run.waited(0) == (barrier.wait_to - barrier.wait_from) / 1e9 > 0
