"""A class in which some attack, graded as a class: the others get their marks, and nothing is left of the attacks.

Some attack by what their code does, and some by how it is packed: links, archives that lead out or burst, files that
stand in for others, names that are no names.
"""

import os
import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import psutil
import pytest

from dtcourse.grading import suite
from dtcourse.grading.batch.command import grade_in_terminal
from dtcourse.grading.batch.grade import grade, marks_file
from dtcourse.grading.batch.marks import Marks

HERE = Path(__file__).parent
ROOT = suite.course_folder(HERE)
SOLUTION = (ROOT / "solutions" / "ring.py").read_bytes()
POSSIBLE = sum(test.points for test in suite.tests_of(ROOT, "ring"))
AT_ONCE = ("crashes", "exits", "fork_bomb", "kills_its_parent", "leaves_a_thread", "leaves_an_orphan", "returns_code",
           "says_what_is_no_text", "writes_at_exit")  # fmt: skip
FOR_EVER = ("never_ends", "stops_itself")


def hand_in(folder, name, files):
    (folder / name).mkdir(parents=True)
    for file, content in files.items():
        (folder / name / file).write_bytes(content)


def everything(folder):
    """All that lies in a folder, and when it was last written."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}


def zipped(file, files, modes=()):
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = dict(modes).get(name, 0o100644) << 16
            archive.writestr(info, content)


def burst(file, size):
    """A zip of a few kilobytes for each megabyte of `size` in it: zeros, in a file called ring.py."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = megabyte * (size >> 20) + b"\x03\x00"
    fields = 20, 0, zipfile.ZIP_DEFLATED, 0, 33, 0, len(packed), size, len("ring.py"), 0
    start = struct.pack("<I5H3I2H", 0x04034B50, *fields) + b"ring.py"
    entry = struct.pack("<I6H3I5H2I", 0x02014B50, 20, *fields, 0, 0, 0, 0, 0) + b"ring.py"
    end = struct.pack("<I4H2IH", 0x06054B50, 0, 0, 1, 1, len(entry), len(start) + len(packed), 0)
    file.write_bytes(start + packed + entry + end)


def pack_attacks(folder):
    """Name -> what the grader says of it, in the notes or as the problem."""
    stands_in = ("conftest.py", "test_ring.py", "pytest.py", "torch.py", "sitecustomize.py", "dtcourse.py")
    others = {"pytest.ini": b"[pytest]\naddopts = --co\n", "x.pth": b"import os"}
    hand_in(folder, "stands_in", {"ring.py": SOLUTION} | others | dict.fromkeys(stands_in, b"raise SystemExit(0)"))
    hand_in(folder, "link", {})
    os.symlink(ROOT / "solutions" / "ring.py", folder / "link" / "ring.py")
    hand_in(folder, "linked_folder", {})
    os.symlink(ROOT / "solutions", folder / "linked_folder" / "exercises")
    hand_in(folder, "pipe", {})
    os.mkfifo(folder / "pipe" / "ring.py")
    zipped(folder / "slip.zip", {"../solutions/ring.py": SOLUTION, "/tmp/ring.py": SOLUTION, "ring.py": SOLUTION})
    zipped(folder / "packed_link.zip", {"ring.py": b"../../solutions/ring.py"}, {"ring.py": 0o120777})
    burst(folder / "bursts.zip", 2 << 30)
    with open(folder / "endless.zip", "wb") as file:
        file.truncate(2 << 30)
    zipped(folder / "damaged.zip", {"ring.py": SOLUTION})
    (folder / "damaged.zip").write_bytes((folder / "damaged.zip").read_bytes()[:-60])
    hand_in(folder, "<script>alert(1)<", {"ring.py": SOLUTION})
    hand_in(folder, "=HYPERLINK(1)", {"ring.py": SOLUTION})
    os.mkdir(os.fsencode(folder) + b"/\xff\x1b[2J")
    return {
        "stands_in": "torch.py was left behind: it would stand in for", "link": "no file ring.py",
        "linked_folder": "no file ring.py", "pipe": "no file ring.py", "slip": "it leads out of the archive",
        "packed_link": "no file ring.py", "bursts": "larger than", "endless": "cannot be read",
        "damaged": "cannot be read", "<script>alert(1)<": None, "=HYPERLINK(1)": None, "??[2J": "no file ring.py",
    }  # fmt: skip


def may_earn(name):
    said = re.findall(r"^# passes: (.+)$", (HERE / "ring" / f"{name}.py").read_text(), re.M)[0].split()
    return sum(test.points for test in suite.tests_of(ROOT, "ring") if test.name in said)


def children():
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Marks by name, after all have been graded, and the names with what was said of how they are packed."""
    place = tmp_path_factory.mktemp("class")
    folder, out = place / "in", place / "out"
    for name in AT_ONCE:
        hand_in(folder, name, {"ring.py": (HERE / "ring" / f"{name}.py").read_bytes()})
    for name in ("anna", "lena", "zoe"):  # among the attacks, in the order of names
        hand_in(folder, name, {"ring.py": SOLUTION + f"# {name}\n".encode()})
    packed = pack_attacks(folder)
    before = everything(folder), everything(ROOT / "solutions"), set(children())
    assert grade_in_terminal(folder, out, ["ring"], jobs=2, seed=5) == 1
    assert (everything(folder), everything(ROOT / "solutions")) == before[:2]
    assert set(children()) - before[2] == set()
    assert sorted(os.listdir(place)) == ["in", "out"]
    names = [*AT_ONCE, "anna", "lena", "zoe", *packed]
    return {name: Marks.load(marks_file(out, name, "ring")) for name in names}, packed, out


def test_the_others_get_their_marks(graded):
    marks, _, _ = graded
    for name in ("anna", "lena", "zoe", "stands_in", "slip", "<script>alert(1)<", "=HYPERLINK(1)"):
        assert marks[name].problem is None and marks[name].earned == POSSIBLE, name


@pytest.mark.parametrize("name", AT_ONCE)
def test_an_attack_earns_no_more_than_it_has_done(name, graded):
    assert graded[0][name].earned <= may_earn(name)


def test_what_is_packed_to_deceive_is_left_behind_and_named(graded):
    marks, packed, _ = graded
    for name, says in packed.items():
        told = [*([marks[name].problem] if marks[name].problem else []), *marks[name].notes]
        assert says is None or any(says in text for text in told), (name, told)
        assert marks[name].earned in (0, POSSIBLE)


def test_what_the_grader_writes_cannot_be_turned_against_who_reads_it(graded):
    out = graded[2]
    pages = [(out / "summary.html").read_text(), (out / "submissions/says_what_is_no_text/index.html").read_text()]
    assert all("<script>alert" not in page and "\x1b" not in page for page in pages)
    table = (out / "grades.csv").read_bytes().decode("utf-8-sig")
    assert not any(line.startswith("=") for line in table.splitlines()) and "'=HYPERLINK(1)" in table


def test_what_never_ends_is_ended(tmp_path):
    for name in FOR_EVER:
        hand_in(tmp_path / "in", name, {"ring.py": (HERE / "ring" / f"{name}.py").read_bytes()})
    before = set(children())
    graded = grade(tmp_path / "in", tmp_path / "out", jobs=2, time_limit=12)
    assert [found[0].earned for found in graded.marks.values()] == [0, 0]
    assert set(children()) - before == set()


@pytest.mark.parametrize("seed", [1, 2])
def test_right_versions_get_full_marks_however_messages_are_delayed(seed, tmp_path):
    for file in (ROOT / suite.TESTS / "right" / "ring").iterdir():
        if file.suffix == ".py":
            hand_in(tmp_path / "in", file.stem, {"ring.py": file.read_bytes()})
        elif file.name != "__pycache__":
            shutil.copytree(file, tmp_path / "in" / file.name)
    graded = grade(tmp_path / "in", tmp_path / "out", ["ring"], jobs=2, seed=seed)
    lost = {name: found[0].first_failure for name, found in graded.marks.items() if found[0].earned < POSSIBLE}
    assert lost == {} and len(graded.marks) >= 20
