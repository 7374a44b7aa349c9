"""The `dtcourse` command. Each subcommand imports what it needs when it is called, so that `--help` is quick."""

from __future__ import annotations

import argparse
import os
import subprocess
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
    return options.command(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dtcourse", description="Learn distributed training by running it.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run)
        return sub

    command("lab", lab, "Open the first lesson in JupyterLab; further options go to JupyterLab.")
    sub = command("check", check, "Check an exercise and say what was seen and what was expected.")
    sub.add_argument("name", help="the exercise, for example: ring")
    sub.add_argument("--impl", metavar="DIR", help="the folder with your file (default: exercises)")
    command("doctor", doctor, "Say what is on this machine, how each lesson will run on it, and what is missing.")
    return parser


def lab(options: list[str]) -> int:
    """Open JupyterLab on the first lesson."""
    lessons = sorted(HOME.glob("lessons/00*.ipynb"))
    if not lessons:
        print(f"There is no first lesson: expected {HOME / 'lessons'}/00*.ipynb.", file=sys.stderr)
        return 1
    # As root (in a container) JupyterLab does not start unless told to.
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(lessons[0]), *root, *options], cwd=HOME)


def check(options: argparse.Namespace) -> int:
    """Check one exercise."""
    from dtcourse.grading.check import check_in_terminal

    return check_in_terminal(options.name, options.impl)


def doctor(options: argparse.Namespace) -> int:
    """Print what `dtcourse.doctor` finds."""
    from dtcourse.doctor import examine, render

    report = examine(HOME / "lessons")
    print(render(report))
    return 0 if report.ready else 1


if __name__ == "__main__":
    sys.exit(main())
