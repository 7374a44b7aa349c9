"""What a network does to messages: a `Link` or a `Network` of them, and what each algorithm costs on it."""

from dtcourse.network.link import Link
from dtcourse.network.network import Network

__all__ = ["Link", "Network"]
