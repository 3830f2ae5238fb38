"""What a shared prompt beginning costs when every lane keeps its own rows of it.

With B lanes, S shared tokens, r bytes a token, f fixed bytes a session and a base that no session
causes, peak = base + B (f + S r), of which (B - 1) S r are copies. Rows after the shared beginning
and margins would only lower the share, so it is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from qwisp.errors import BadInput

WINDOW_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A process with `base_bytes` beside its sessions; a session has `fixed_bytes` beside rows.

    >>> server = SharedPrefix(base_bytes=1000, fixed_bytes=0, row_bytes=1)
    >>> server.duplicated_bytes(3, 100), server.peak_bytes(3, 100), server.share(3, 100)
    (200, 1300, Fraction(2, 13))
    """

    base_bytes: int
    fixed_bytes: int
    row_bytes: int

    def __post_init__(self) -> None:
        if self.base_bytes < 0 or self.fixed_bytes < 0 or self.row_bytes < 1:
            raise BadInput(
                f"base of {self.base_bytes}, {self.fixed_bytes} fixed bytes and "
                f"{self.row_bytes} bytes a row",
                "give bytes of 0 or more, and a row of at least 1",
            )

    def duplicated_bytes(self, lanes: int, shared_tokens: int) -> int:
        """Return the bytes of all copies but one."""
        return (lanes - 1) * shared_tokens * self.row_bytes

    def peak_bytes(self, lanes: int, shared_tokens: int) -> int:
        """Return base and sessions that hold nothing but the shared tokens."""
        return self.base_bytes + lanes * (self.fixed_bytes + shared_tokens * self.row_bytes)

    def share(self, lanes: int, shared_tokens: int) -> Fraction:
        """Return the part of the peak that sharing could save at most."""
        copies = self.duplicated_bytes(lanes, shared_tokens)
        return Fraction(copies, self.peak_bytes(lanes, shared_tokens))

    def crossing_tokens(
        self, lanes: int, share: Fraction, *, step_tokens: int = WINDOW_TOKENS
    ) -> int | None:
        """Return the first whole window of shared tokens at which the share is reached.

        None where it never is: the share stays below (B - 1) / B whatever the length.

        >>> server = SharedPrefix(base_bytes=1000, fixed_bytes=0, row_bytes=1)
        >>> server.crossing_tokens(2, Fraction(1, 10), step_tokens=1)
        125
        """
        gain = (lanes - 1 - share * lanes) * self.row_bytes
        if gain <= 0:
            return None
        tokens = share * (self.base_bytes + lanes * self.fixed_bytes) / gain
        return -(-tokens // step_tokens) * step_tokens

    def largest_tokens(
        self, lanes: int, limit_bytes: int, *, step_tokens: int = WINDOW_TOKENS
    ) -> int:
        """Return the most shared tokens, in whole windows, that every lane can hold in the limit.

        0 where not even empty sessions fit.
        """
        room = limit_bytes - self.base_bytes - lanes * self.fixed_bytes
        tokens = room // (lanes * self.row_bytes)
        return max(0, tokens // step_tokens * step_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granule:
    """Rows of one head region, `row_bytes` each, mapped in whole granules of `granule_bytes`.

    Only granules that the shared rows fill can be one piece of memory for all lanes; the rest of
    the last one holds a lane's own rows and stays its own.

    >>> Granule(granule_bytes=16384, row_bytes=512).rows
    32
    >>> Granule(granule_bytes=2 * 2**20, row_bytes=512).saved_bytes(2, 4095, num_regions=40)
    0
    """

    granule_bytes: int
    row_bytes: int

    @property
    def rows(self) -> int:
        """Rows that one granule holds (0 if a row is larger)."""
        return self.granule_bytes // self.row_bytes

    def mapped_bytes(self, shared_tokens: int) -> int:
        """Return the bytes of a region's shared rows that whole granules cover."""
        return shared_tokens * self.row_bytes // self.granule_bytes * self.granule_bytes

    def saved_bytes(self, lanes: int, shared_tokens: int, *, num_regions: int) -> int:
        """Return what mapping saves over all regions (layers x kv heads x keys and values)."""
        return (lanes - 1) * num_regions * self.mapped_bytes(shared_tokens)
