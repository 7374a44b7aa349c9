"""dtcourse: learn distributed training by running it. Start with `make lab`, or with `Cluster(4)`.

Names are imported when they are first used, so that `dtcourse doctor` also works where torch does not, and so that
the ranks' own process loads torch at the same time as this one.
"""

import importlib
import sys

_HOME = {
    "Cluster": "dtcourse.cluster",
    "per_rank": "dtcourse.cluster",
    "Deadlock": "dtcourse.errors",
    "MismatchError": "dtcourse.errors",
    "RankDied": "dtcourse.errors",
    "RankError": "dtcourse.errors",
    "RunError": "dtcourse.errors",
    "RunStopped": "dtcourse.errors",
    "RunTimeout": "dtcourse.errors",
    "mark": "dtcourse.events",
    "region": "dtcourse.events",
    "Link": "dtcourse.network",
    "Network": "dtcourse.network",
    "provenance": "dtcourse.origins",
    "Run": "dtcourse.run",
    "ask": "dtcourse.views.question",
    "curves": "dtcourse.views.curves",
    "overlap": "dtcourse.views.overlap",
    "pipeline_plan": "dtcourse.views.pipeline",
    "ports": "dtcourse.views.ports",
    "times": "dtcourse.views.times",
    "check": "dtcourse.grading",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"dtcourse has no {name}; it has {', '.join(_HOME)}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)


def _make_magic_known() -> None:
    """In a notebook, `import dtcourse` is enough for `%%ranks`."""
    if (ipython := sys.modules.get("IPython")) and (shell := ipython.get_ipython()):
        from dtcourse.cluster.magic import load_ipython_extension

        load_ipython_extension(shell)


_make_magic_known()
