"""dtcourse: learn distributed training by running it. Start with `make lab`, or with `Cluster(4)`."""

try:
    import torch  # noqa: F401
except Exception as problem:  # a broken installation: `dtcourse doctor` must still be able to say so
    _broken = f"torch does not work here ({problem}); `dtcourse doctor` says what to do"

    def __getattr__(name: str) -> object:
        raise ImportError(_broken)
else:
    from dtcourse.cluster import Cluster, per_rank
    from dtcourse.errors import Deadlock, MismatchError, RankDied, RankError, RunError, RunTimeout
    from dtcourse.events import mark, region
    from dtcourse.provenance import provenance
    from dtcourse.run import Run

__all__ = [
    "Cluster", "Deadlock", "MismatchError", "RankDied", "RankError", "Run", "RunError", "RunTimeout",
    "mark", "per_rank", "provenance", "region",
]  # fmt: skip


def _make_magic_known() -> None:
    """In a notebook, `import dtcourse` is enough for `%%ranks`."""
    import sys

    if "torch" in sys.modules and (ipython := sys.modules.get("IPython")) and (shell := ipython.get_ipython()):
        from dtcourse.cluster.magic import load_ipython_extension

        load_ipython_extension(shell)


_make_magic_known()
