"""Checks: what is asked of an exercise, held against what a run of the reader's code shows."""

from dtcourse.grading.check import check, check_in_terminal

__all__ = ["check", "check_in_terminal"]
