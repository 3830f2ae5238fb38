"""What to restore, capture and save for one prompt: numbers in, numbers out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

MIN_GAIN_TOKENS = 256


class PrefixPlan(NamedTuple):
    """Restore `restore` tokens; capture a shared entry at `capture`; save the conversation?"""

    restore: int
    capture: int | None
    save: bool


def plan_prefix(
    prompt_tokens: int,
    hit_tokens: int,
    lcp_tokens: int,
    *,
    min_shared_tokens: int = 1024,
    boundary_tokens: int = 1,
) -> PrefixPlan:
    """Return what to do with a prompt whose longest stored prefix has `hit_tokens`.

    `lcp_tokens` is what it shares with other prompts. A capture lies on the boundary grid, is worth
    `min_shared_tokens` in all and 256 beyond the restore; a hit never covers the whole prompt,
    because the last token must decode.

    >>> plan_prefix(12_000, 0, 9_000)
    PrefixPlan(restore=0, capture=9000, save=True)
    >>> plan_prefix(9_000, 8_999, 8_999)
    PrefixPlan(restore=8999, capture=None, save=False)
    """
    last = prompt_tokens - 1
    restore = min(hit_tokens, last)
    capture: int | None = on_grid(min(lcp_tokens, last), boundary_tokens)
    if capture < min_shared_tokens or capture < restore + MIN_GAIN_TOKENS:
        capture = None
    return PrefixPlan(restore, capture, prompt_tokens >= min_shared_tokens and restore < last)


def on_grid(tokens: int, boundary_tokens: int) -> int:
    """Return `tokens` rounded down to a boundary at which state may be kept."""
    return tokens // boundary_tokens * boundary_tokens


def common_tokens(
    ours: tuple[int, ...], our_tokens: int, theirs: tuple[int, ...], their_tokens: int, step: int
) -> int:
    """Return the tokens two prompts share, as far as their chained keys tell.

    Key i stands for all tokens up to `(i + 1) * step`, or the end of the prompt: equal keys mean
    equal beginnings, so the longest common run is found by bisection.
    """
    most = min(len(ours), len(theirs))
    num_equal = leading_keys(most, lambda i: ours[i] == theirs[i])
    return min(num_equal * step, our_tokens, their_tokens)


def leading_keys(most: int, is_shared: Callable[[int], bool]) -> int:
    """Return how many of the first `most` chained keys are shared: keys 0, 1, ... up to some one.

    >>> leading_keys(5, lambda i: i < 3)
    3
    """
    return bisect_left(range(most), True, key=lambda i: not is_shared(i))
