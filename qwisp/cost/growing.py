"""How long a session lasts whose every turn adds tokens, from the cost per new token at two depths.

Only for one model on one machine and server: the two costs and the answer are the same session's.
"""

from __future__ import annotations

from typing import NamedTuple

from qwisp.errors import BadInput


class SessionTime(NamedTuple):
    """Seconds of a whole growing session, by two readings of the same line.

    `between_s` takes the two costs as those of the first and the last turn; `by_depth_s` reads the
    line at the depth where each turn ends, so it also extends it below the first cost.
    """

    between_s: float
    by_depth_s: float


def growing_session(
    cost_s_by_depth: dict[int, float], *, step_tokens: int, num_turns: int
) -> SessionTime:
    """Return the seconds of `num_turns` turns of `step_tokens` new tokens, cost linear in depth.

    `cost_s_by_depth` holds seconds per new token at exactly two depths in tokens.

    >>> growing_session({1000: 0.01, 4000: 0.04}, step_tokens=1000, num_turns=4)
    SessionTime(between_s=100.0, by_depth_s=100.0)
    """
    if len(cost_s_by_depth) != 2:
        raise BadInput(
            f"{len(cost_s_by_depth)} costs per token given", "give the cost at two depths, no more"
        )
    (d0, c0), (d1, c1) = sorted(cost_s_by_depth.items())
    slope = (c1 - c0) / (d1 - d0)
    mean_end = step_tokens * (num_turns + 1) / 2
    tokens = step_tokens * num_turns
    return SessionTime(
        between_s=tokens * (c0 + c1) / 2, by_depth_s=tokens * (c0 + slope * (mean_end - d0))
    )
