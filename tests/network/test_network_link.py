"""A link is read as it is written, and nonsense is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtcourse import Link

BANDWIDTHS = {
    "1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6, "12.5 MB/s": 12.5e6, "10Gbit/s": 1.25e9, " 8 bit/s ": 1.0,
    "3 kB/s": 3000.0, "2.5e3 B/s": 2500.0, "0.5 TB/s": 5e11, ".5 GB/s": 5e8, 5: 5.0, 1e9: 1e9,
}  # fmt: skip
LATENCIES = {"50 us": 50e-6, "1 ms": 1e-3, "0 s": 0.0, "2.5 s": 2.5, "700 ns": 700e-9, 0: 0.0, 1e-4: 1e-4}
NO_BANDWIDTHS = [
    "", "fast", "Gbit/s", "1", "1 Gb", "1 Gbps", "1 gbit/s", "1 Gbit / s", "-1 Gbit/s", "0 MB/s", "1 2 MB/s",
    "1.2.3 MB/s", "1e999 MB/s", "50 us", 0, -1, math.inf, math.nan, True, None, [1],
]  # fmt: skip
NO_LATENCIES = ["", "soon", "50", "50 u", "-1 ms", "1 Gbit/s", "1 min", -1e-3, math.inf, math.nan, False, None]


@pytest.mark.parametrize("given", BANDWIDTHS)
def test_bandwidths(given):
    assert Link(given).bandwidth == pytest.approx(BANDWIDTHS[given])


@pytest.mark.parametrize("given", LATENCIES)
def test_latencies(given):
    assert Link(1, given).latency == pytest.approx(LATENCIES[given])


@pytest.mark.parametrize("given", NO_BANDWIDTHS)
def test_what_is_no_bandwidth(given):
    with pytest.raises(ValueError, match="bandwidth of a link is"):
        Link(given)


@pytest.mark.parametrize("given", NO_LATENCIES)
def test_what_is_no_latency(given):
    with pytest.raises(ValueError, match="latency of a link is"):
        Link(1, given)


def test_the_error_names_the_unit_and_those_there_are():
    with pytest.raises(ValueError, match=r"not '1 Gbps': 'Gbps' is none of its units \(bit/s, .*Gbit/s.*GB/s"):
        Link("1 Gbps")
    with pytest.raises(ValueError, match="it needs a unit"):
        Link("1 Gbit/s", "50")


@given(st.floats(1e-3, 1e13), st.floats(0, 1e3))
def test_what_is_shown_is_the_link_itself(bandwidth, latency):
    link = Link(bandwidth, latency)
    again = eval(repr(link))
    assert again.bandwidth == pytest.approx(link.bandwidth, rel=1e-5)
    assert again.latency == pytest.approx(link.latency, rel=1e-5, abs=1e-14)


def test_equal_links_however_written():
    assert Link("1 Gbit/s", "1 ms") == Link("125 MB/s", 0.001) != Link("1 Gbit/s", "2 ms")
    assert len({Link("1 Gbit/s"), Link(125e6)}) == 1
    assert repr(Link(125e6, 5e-5)) == 'Link("1 Gbit/s", "50 us")'


@given(st.floats(1, 1e12), st.floats(0, 1), st.integers(0, 10**9))
def test_a_message_takes_its_bytes_over_the_bandwidth_and_a_latency(bandwidth, latency, size):
    assert Link(bandwidth, latency).seconds(size) == pytest.approx(latency + size / bandwidth)
