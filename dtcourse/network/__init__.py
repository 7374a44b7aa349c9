"""What a network does to messages: a `Link` with its bandwidth and latency, and what each algorithm costs on it."""

from dtcourse.network.link import Link

__all__ = ["Link"]
