"""What copies of a shared prompt beginning cost, and how much whole granules can save of it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from qwisp.errors import BadInput
from qwisp.memory.session_bytes import SessionBytes
from qwisp.memory.shared_prefix import Granule, SharedPrefix
from qwisp.spec.catalog import load_model
from qwisp.units import KIB, MIB

SESSION = SessionBytes(load_model("qwen3.6-35b-a3b"))
BASE = 39_936 * MIB - 3 * SESSION.bytes(30_795)
SERVER = SharedPrefix(base_bytes=BASE, fixed_bytes=SESSION.fixed_bytes, row_bytes=SESSION.row_bytes)
TENTH = Fraction(1, 10)


def test_the_base_of_the_published_peak_is_what_no_session_causes():
    assert BASE // MIB == 37_947
    assert 3 * 30_795 * SESSION.row_bytes // MIB == 1_804


@pytest.mark.parametrize(("lanes", "tokens"), [(2, 243_712), (3, 114_944), (4, 75_264)])
def test_the_share_crosses_a_tenth_at_the_published_lengths_and_not_a_window_before(lanes, tokens):
    assert SERVER.crossing_tokens(lanes, TENTH) == tokens
    assert SERVER.share(lanes, tokens) >= TENTH > SERVER.share(lanes, tokens - 256)


@pytest.mark.parametrize(("lanes", "percent"), [(2, 5.9), (3, 11.2), (4, 15.9)])
def test_the_shares_at_128k_are_the_published_ones(lanes, percent):
    assert round(float(SERVER.share(lanes, 128 * KIB)) * 100, 1) == percent


def test_one_lane_has_no_copy_and_a_share_it_cannot_reach_is_none():
    assert SERVER.share(1, 1000) == 0
    assert SERVER.crossing_tokens(1, TENTH) is None
    assert SERVER.crossing_tokens(2, Fraction(1, 2)) is None


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_the_largest_length_fits_and_one_more_window_does_not(lanes):
    limit = 45_875 * MIB
    tokens = SERVER.largest_tokens(lanes, limit)
    assert SERVER.peak_bytes(lanes, tokens) <= limit < SERVER.peak_bytes(lanes, tokens + 256)
    assert SERVER.largest_tokens(lanes, BASE) == 0


@pytest.mark.parametrize("granule", [4 * KIB, 16 * KIB, 2 * MIB])
def test_a_region_loses_less_than_one_granule(granule):
    cut = Granule(granule_bytes=granule, row_bytes=512)
    for shared in (1, 31, 32, 33, 4095, 4096, 30_778):
        assert 0 <= shared * 512 - cut.mapped_bytes(shared) < granule
        assert cut.saved_bytes(3, shared, num_regions=40) == 80 * cut.mapped_bytes(shared)


def test_what_is_no_size_is_refused():
    with pytest.raises(BadInput, match="0 bytes a row"):
        SharedPrefix(base_bytes=1, fixed_bytes=0, row_bytes=0)
