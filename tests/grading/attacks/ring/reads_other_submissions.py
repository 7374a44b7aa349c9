"""Looks for other submissions, for results and for the tests, in every folder and behind every descriptor."""

# passes: test_one_rank
# says: sent 0 messages
import contextlib
import os

OWN = {"ring.py"}
WANTED = ("test_ring.py", "grades.csv", "summary.html", "ring.json", "ring_reduce_scatter", "submissions")


def places():
    yield from ("/", "/submission/..", "/proc/1/root", "/proc/self/cwd/..", os.path.dirname(os.__file__))
    for descriptor in range(64):
        yield f"/dev/fd/{descriptor}"
        with contextlib.suppress(OSError):
            os.fchdir(descriptor)  # a folder of the grader's would lead out
            yield "."


def attack(tensor, group=None):
    found = set(os.listdir("/submission")) - OWN
    for place in places():
        for folder, folders, files in os.walk(place):
            folders[:] = folders if folder.count("/") < place.count("/") + 2 else []
            found.update(os.path.join(folder, name) for name in (*folders, *files) if name in WANTED)
    if found:
        raise RuntimeError(f"there is something: {found}")


ring_reduce_scatter = ring_all_gather = ring_all_reduce = attack
