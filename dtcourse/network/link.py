"""`Link`: how fast bytes leave and enter a rank, and how long they are on the way."""

from __future__ import annotations

import math
import re

_RATES = {"bit/s": 1 / 8, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6, "Tbit/s": 125e9}
_BYTE_RATES = {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}  # each table from the smallest unit to the largest


class Link:
    """A port of `bandwidth` in each direction at once (full duplex); each byte arrives `latency` after it has left.

    bandwidth   "1 Gbit/s", "12.5 MB/s", or a number of bytes a second; a byte has 8 bits, and M is a million
    latency     "50 us", "1 ms", or a number of seconds

    Kept as `bandwidth` in bytes a second and `latency` in seconds. Raises ValueError for what is neither.
    """

    __slots__ = ("bandwidth", "latency")

    def __init__(self, bandwidth: str | float, latency: str | float = 0.0) -> None:
        self.bandwidth = _parse(bandwidth, _RATES | _BYTE_RATES, "bandwidth", '"1 Gbit/s" or bytes a second')
        self.latency = _parse(latency, _TIMES, "latency", '"50 us" or seconds')
        if not self.bandwidth:
            raise ValueError("the bandwidth of a link is above 0: nothing would ever arrive")

    def seconds(self, size: int) -> float:
        """From the first byte sent of a message of `size` bytes to its last byte received, alone on the link."""
        return self.latency + size / self.bandwidth

    def route(self, sender: int, receiver: int) -> tuple[Link, int, int]:
        """The link that a message takes, its out-port and its in-port: each rank has one of each to itself."""
        return self, sender, receiver

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Link) and (self.bandwidth, self.latency) == (other.bandwidth, other.latency)

    def __hash__(self) -> int:
        return hash((self.bandwidth, self.latency))

    def __repr__(self) -> str:
        return f'Link("{_shown(self.bandwidth, _RATES)}", "{_shown(self.latency, _TIMES)}")'


def _parse(value: str | float, units: dict[str, float], what: str, such_as: str) -> float:
    """A finite number, not below 0, in bytes a second or in seconds."""
    problem = f"the {what} of a link is {such_as}, not {value!r}"
    if isinstance(value, str):
        parts = re.fullmatch(r"\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*(\S*)\s*", value)
        number, unit = parts.groups() if parts else ("", "")
        if parts and unit not in units:
            reason = f"{unit!r} is none of its units" if unit else "it needs a unit"
            raise ValueError(f"{problem}: {reason} ({', '.join(units)})")
        try:
            value = float(number) * units.get(unit, 1.0)
        except ValueError:
            raise ValueError(problem) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(problem)
    return float(value)


def _shown(value: float, units: dict[str, float]) -> str:
    """In the largest unit of which there is at least one."""
    unit = next((u for u in reversed(units) if value >= units[u]), next(iter(units)))
    return f"{value / units[unit]:.6g} {unit}"
