"""The `dtcourse` command. Each subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).parent.parent  # where lessons/ and exercises/ are: the course is installed in place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0 well, 1 not well, 2 not understood."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command is lab:
        return lab(rest)
    if rest:
        parser.error(f"not understood: {' '.join(rest)}")
    try:
        return options.command(options)
    except KeyboardInterrupt:
        return 130  # as a shell says it
    except BrokenPipeError:  # `dtcourse demo ring | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dtcourse", description="Learn distributed training by running it.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run)
        return sub

    command("lab", lab, "Open the first lesson in JupyterLab; further options go to JupyterLab.")
    sub = command("demo", demo, "Run an algorithm on ranks of this machine, and tell what each of them did.")
    sub.add_argument("name", choices=["ring"], help="the algorithm: ring")
    sub.add_argument("--ranks", type=_ranks, default=4, metavar="N", help="how many, 1 to 8 (default: 4)")
    sub.add_argument("--html", type=_file, metavar="FILE", help="write the run as a page that needs no network")
    sub = command("check", check, "Check an exercise and say what was seen and what was expected.")
    sub.add_argument("name", help="the exercise, for example: ring")
    sub.add_argument("--impl", metavar="DIR", help="the folder with your file (default: exercises)")
    sub = command("grade", grade, "Grade a class: every submission in sandboxes, with tables and pages of the results.")
    sub.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="the folder: a folder or a zip for each")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    text = "grade this exercise (may be given again; default: each that somebody has handed in)"
    sub.add_argument("--exercise", action="append", default=[], metavar="NAME", help=text)
    text = "submissions at a time (default: one for each processor)"
    sub.add_argument("--jobs", type=_jobs, default=os.cpu_count() or 1, metavar="N", help=text)
    sub.add_argument("--seed", type=int, metavar="N", help="of all that is drawn (default: DIR/seed.txt, or a new one)")
    sub = command("release", release, "Make the student edition of the course: without solutions and hidden tests.")
    sub.add_argument("folder", type=Path, metavar="DIR", help="the folder to make")
    sub = command("gradescope", gradescope, "Make an autograder for Gradescope.")
    sub.add_argument("exercise", nargs="+", help="the exercises that it grades")
    sub.add_argument("--out", type=Path, default=Path("autograder.zip"), metavar="ZIP", help="default: autograder.zip")
    command("doctor", doctor, "Say what is on this machine, how each lesson will run on it, and what is missing.")
    return parser


def lab(options: list[str]) -> int:
    """Become JupyterLab, open on the first lesson, with the whole course in its file browser."""
    lessons = sorted(HOME.glob("lessons/00*.ipynb"))
    if not lessons:
        print(f"There is no first lesson: expected {HOME / 'lessons'}/00*.ipynb.", file=sys.stderr)
        return 1
    settings = [
        f"--ServerApp.root_dir={HOME}",
        # The address that is printed leads to the lesson, too: under WSL and over ssh no browser opens by itself.
        f"--LabApp.default_url=/lab/tree/lessons/{lessons[0].name}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",  # it would ask the network
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # in a container; as root JupyterLab has to be told to start
        settings.append("--allow-root")
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *settings, *options])


def demo(options: argparse.Namespace) -> int:
    """Run the ring, and say step by step what each rank did."""
    from dtcourse.demo import ring

    return ring(options.ranks, options.html)


def check(options: argparse.Namespace) -> int:
    """Check one exercise."""
    from dtcourse.grading.check import check_in_terminal

    return check_in_terminal(options.name, options.impl)


def grade(options: argparse.Namespace) -> int:
    """Grade a folder of submissions."""
    from dtcourse.grading.batch.command import grade_in_terminal

    return grade_in_terminal(options.submissions, options.out, options.exercise, options.jobs, options.seed)


def release(options: argparse.Namespace) -> int:
    """Make the student edition."""
    from dtcourse.grading.batch.release import release

    try:
        release(options.folder)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    print(f"The student edition is in {options.folder}: hand out this folder, or put it under version control.")
    return 0


def gradescope(options: argparse.Namespace) -> int:
    """Make the autograder's zip."""
    from dtcourse.grading.batch.gradescope import autograder

    try:
        autograder(options.exercise, options.out)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    print(f"{options.out}: upload it as the autograder; Ubuntu 24.04 as its base image has the Python it needs.")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Print what `dtcourse.doctor` finds."""
    from dtcourse.doctor import examine, render

    report = examine(HOME / "lessons")
    print(render(report))
    return 0 if report.ready else 1


def _ranks(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 8:
        return int(text)
    raise argparse.ArgumentTypeError(f"1 to 8 ranks, not {text}: the demo gives each rank's share a digit of its own")


def _jobs(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 256:
        return int(text)
    raise argparse.ArgumentTypeError(f"1 to 256 at a time, not {text}")


def _file(text: str) -> Path:
    """A path that can be written: better said now than after the run."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written (no such folder, or no right to)")
    return path


if __name__ == "__main__":
    sys.exit(main())
