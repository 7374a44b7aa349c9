"""What is taken of a submission, and what is left behind: links, bombs, names that would stand in for others."""

import os
import random
import tracemalloc
import zipfile

import pytest

from dtcourse.grading.batch import intake
from dtcourse.grading.batch.intake import Source, Unreadable, sources, take

RING = b"def ring(): ...\n"


def folder(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return Source(path.name, path)


def zipped(path, files, attributes=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = dict(attributes).get(name, 0) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return Source(path.stem, path)


@pytest.fixture(params=["folder", "zip"])
def handed_in(request, tmp_path):
    """Makes a submission of files: a folder, or a zip."""
    if request.param == "zip":
        return lambda files: zipped(tmp_path / "anna.zip", files)
    (tmp_path / "anna").mkdir()
    return lambda files: folder(tmp_path / "anna", files)


def test_the_file_and_its_helpers_from_wherever_they_lie(handed_in):
    for place in ("", "exercises/", "anna/dtcourse-main/exercises/"):
        given = {f"{place}ring.py": RING, f"{place}chunks.py": b"N = 1\n", "notes.txt": b"", "elsewhere/more.py": b""}
        if place == "anna/dtcourse-main/exercises/":
            given["__MACOSX/ring.py"] = b"rubbish"
        source = handed_in(given)
        assert take(source, "ring").files == {"chunks.py": b"N = 1\n", "ring.py": RING}
        assert take(source, "ring").left == []
        if source.path.is_dir():
            os.remove(source.path / f"{place}ring.py")


def test_no_file_and_two_files(handed_in):
    with pytest.raises(Unreadable, match=r"there is no file ring\.py"):
        take(handed_in({"Ring.py": RING}), "ring")


def test_two_files(handed_in):
    with pytest.raises(Unreadable, match=r"there are 2 files ring\.py: (a|b)/ring\.py"):
        take(handed_in({"a/ring.py": RING, "b/ring.py": RING}), "ring")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("conftest.py", "the grader's"),
        ("test_ring.py", "the grader's"),
        ("torch.py", "stand in for the module 'torch'"),
        ("pytest.py", "stand in for the module 'pytest'"),
        ("random.py", "stand in for the module 'random'"),
        ("dtcourse.py", "stand in for the module 'dtcourse'"),
        ("a-b.py", "nothing can import"),
    ],
)
def test_helpers_that_stand_in_for_others_are_left_behind(handed_in, name, reason):
    taken = take(handed_in({"ring.py": RING, name: b"raise SystemExit"}), "ring")
    assert list(taken.files) == ["ring.py"]
    assert [name in text and reason in text for text in taken.left] == [True]


def test_only_python_is_taken(handed_in):
    given = {"ring.py": RING, "pytest.ini": b"[pytest]", "torch/__init__.py": b"", "x.so": b"\x7fELF", "x.pyc": b""}
    assert list(take(handed_in(given), "ring").files) == ["ring.py"]


def test_large_files_and_many_files(handed_in, monkeypatch):
    monkeypatch.setattr(intake, "LARGEST", 1000)
    monkeypatch.setattr(intake, "MOST_FILES", 3)
    given = {"ring.py": RING, "a.py": b"#" * 1001, "b.py": b"#" * 1000} | {f"c{i}.py": b"" for i in range(3)}
    taken = take(handed_in(given), "ring")
    assert list(taken.files) == ["b.py", "c0.py", "ring.py"]
    assert ["larger than the 1,000 bytes" in taken.left[0], len(taken.left)] == [True, 3]
    with pytest.raises(Unreadable, match="larger than"):
        take(handed_in({"ring.py": b"#" * 1001}), "ring")


def test_all_files_together_have_a_limit(handed_in, monkeypatch):
    monkeypatch.setattr(intake, "ALL_TOGETHER", 3000)
    taken = take(handed_in({"ring.py": b"#" * 1000} | {f"h{i}.py": b"#" * 900 for i in range(3)}), "ring")
    assert sorted(taken.files) == ["h0.py", "h1.py", "ring.py"]


def test_links_are_not_followed(tmp_path):
    (tmp_path / "solution.py").write_bytes(b"secret")
    (tmp_path / "anna").mkdir()
    os.symlink(tmp_path / "solution.py", tmp_path / "anna" / "ring.py")
    with pytest.raises(Unreadable, match=r"there is no file ring\.py"):
        take(Source("anna", tmp_path / "anna"), "ring")
    os.symlink(tmp_path / "anna", tmp_path / "bert")
    with pytest.raises(Unreadable, match="it is a link"):
        take(Source("bert", tmp_path / "bert"), "ring")
    (tmp_path / "carl").mkdir()
    os.symlink(tmp_path, tmp_path / "carl" / "exercises")
    with pytest.raises(Unreadable, match=r"there is no file ring\.py"):
        take(Source("carl", tmp_path / "carl"), "ring")


def test_a_device_or_a_pipe_is_not_opened(tmp_path):
    source = folder(tmp_path / "anna", {"ring.py": RING})
    os.mkfifo(tmp_path / "anna" / "waits.py")
    taken = take(source, "ring")
    assert list(taken.files) == ["ring.py"] and "a link or a device" in taken.left[0]


def test_a_link_in_a_zip(tmp_path):
    given = {"ring.py": b"/course/solutions/ring.py"}
    with pytest.raises(Unreadable, match=r"there is no file ring\.py"):
        take(zipped(tmp_path / "anna.zip", given, {"ring.py": 0o120777}), "ring")


@pytest.mark.parametrize("name", ["../ring.py", "/ring.py", "a/../../ring.py", "..\\ring.py"])
def test_names_that_lead_out_of_a_zip(tmp_path, name):
    source = zipped(tmp_path / "anna.zip", {name: b"out", "ring.py": RING})
    taken = take(source, "ring")
    assert taken.files == {"ring.py": RING} and "leads out of the archive" in taken.left[0]
    assert sorted(os.listdir(tmp_path)) == ["anna.zip"]


def test_a_zip_bomb_is_read_up_to_the_limit_only(tmp_path):
    source = zipped(tmp_path / "anna.zip", {"ring.py": RING, "zeros.py": bytes(64 << 20)})
    assert source.path.stat().st_size < 1 << 20
    taken = take(source, "ring")
    assert list(taken.files) == ["ring.py"] and "zeros.py was left behind: it is larger" in taken.left[0]


def test_a_zip_bomb_does_not_fill_the_memory(tmp_path):
    source = zipped(tmp_path / "anna.zip", {"ring.py": RING, "zeros.py": bytes(64 << 20)})
    tracemalloc.start()
    try:
        take(source, "ring")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_has_become_a_link_is_not_followed(tmp_path):
    folder(tmp_path / "anna", {"ring.py": RING})
    (tmp_path / "solution.py").write_bytes(b"secret")
    entries = intake.Folder(tmp_path / "anna")
    (path,) = entries.paths()
    os.remove(tmp_path / "anna" / "ring.py")
    os.symlink(tmp_path / "solution.py", tmp_path / "anna" / "ring.py")
    with pytest.raises(OSError, match="symbolic links"):
        entries.read(path, 1000)


def test_a_zip_that_lies_about_its_sizes(tmp_path):
    source = zipped(tmp_path / "anna.zip", {"ring.py": b"#" * (2 << 20)})
    raw = source.path.read_bytes()
    source.path.write_bytes(raw.replace((2 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(Unreadable):
        take(source, "ring")


def test_what_is_no_zip(tmp_path):
    (tmp_path / "anna.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(Unreadable, match="cannot be read"):
        take(Source("anna", tmp_path / "anna.zip"), "ring")


def test_too_many_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "MOST_ENTRIES", 3)
    for source in (
        zipped(tmp_path / "anna.zip", {f"{i}.txt": b"" for i in range(4)}),
        folder(tmp_path / "bert", {f"{i}.txt": b"" for i in range(4)}),
    ):
        with pytest.raises(Unreadable, match="more than 3 files"):
            take(source, "ring")


def test_a_folder_that_holds_one_zip_is_that_zip(tmp_path):
    (tmp_path / "Anna_4711").mkdir()
    zipped(tmp_path / "Anna_4711" / "ring.zip", {"ring.py": RING})
    assert take(Source("Anna_4711", tmp_path / "Anna_4711"), "ring").files == {"ring.py": RING}


def test_the_digest_tells_files_apart(tmp_path):
    digests = {
        take(folder(tmp_path / str(i), files), "ring").digest
        for i, files in enumerate([{"ring.py": b"a"}, {"ring.py": b"b"}, {"ring.py": b"a", "b.py": b""}])
    }
    again = take(folder(tmp_path / "again", {"ring.py": b"a"}), "ring").digest
    assert len(digests) == 3 and again in digests


def test_sources_by_name(tmp_path):
    with pytest.raises(ValueError, match="has no submissions"):
        sources(tmp_path)
    for name in ("bert", "Anna", ".git"):
        (tmp_path / name).mkdir()
    zipped(tmp_path / "carl.zip", {})
    zipped(tmp_path / "dora.ZIP", {"ring.py": RING})
    (tmp_path / "emil.7z").touch()
    found = {source.name: source for source in sources(tmp_path)}
    assert list(found) == ["Anna", "bert", "carl", "dora", "emil.7z"]
    assert take(found["dora"], "ring").files
    with pytest.raises(Unreadable, match="it is neither a folder nor a zip"):  # and is not lost without a word
        take(found["emil.7z"], "ring")
    zipped(tmp_path / "bert.zip", {})
    with pytest.raises(ValueError, match=r"two submissions of 'bert': bert(\.zip)? and bert"):
        sources(tmp_path)


def test_files_alone_are_no_class(tmp_path):
    (tmp_path / "ring.py").touch()
    with pytest.raises(ValueError, match="has no submissions"):
        sources(tmp_path)


def test_where_the_file_is_missing_it_is_said_what_there_is(tmp_path):
    source = folder(tmp_path / "anna", {"a.ipynb": b"", "Ring.py": RING} | {f"{i}.txt": b"" for i in range(5)})
    with pytest.raises(Unreadable, match=r"there is no file ring\.py; there is Ring\.py, 0\.txt, .* and 2 more$"):
        take(source, "ring")
    with pytest.raises(Unreadable, match=r"there is no file ring\.py; there is nothing$"):
        take(zipped(tmp_path / "bert.zip", {}), "ring")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip_is_no_error_of_the_grader(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "anna.zip", "w", method) as archive:
        archive.writestr("ring.py", RING * 100)
    whole, chance = (tmp_path / "anna.zip").read_bytes(), random.Random(method)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / "anna.zip").write_bytes(damaged)
        try:
            take(Source("anna", tmp_path / "anna.zip"), "ring")
        except Unreadable:
            refused += 1
    assert refused > 100


def test_a_zip_too_large_to_look_into(tmp_path, monkeypatch):
    source = zipped(tmp_path / "anna.zip", {"ring.py": RING})
    monkeypatch.setattr(intake, "LARGEST_ZIP", 50)
    with pytest.raises(Unreadable, match="it is a zip of .* bytes, and 50 are the most"):
        take(source, "ring")


def test_names_that_are_no_text_can_be_written_down(tmp_path):
    source = folder(tmp_path / "anna", {"ring.py": RING})
    for name in (b"\xff\x1b[2J.py", b"two\nlines.py"):
        os.symlink(b"/nowhere", os.path.join(os.fsencode(source.path), name))
    assert sorted(text.split(" was")[0] for text in take(source, "ring").left) == ["??[2J.py", "two?lines.py"]
    os.mkdir(os.path.join(os.fsencode(tmp_path), b"\xff\x1b[2J"))
    assert [source.name for source in sources(tmp_path)] == ["??[2J", "anna"]


def test_of_many_files_that_were_left_behind_a_few_are_named(tmp_path):
    source = folder(tmp_path / "anna", {"ring.py": RING} | {f"not-{i}.py": b"" for i in range(60)})
    left = take(source, "ring").left
    assert len(left) == 21 and left[-1] == "40 more were left behind"
