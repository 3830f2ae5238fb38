"""Everything a policy may be told. One frozen object, read by scheduler, simulator and engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qwisp.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the scheduler decides. Token counts throughout.

    `step_tokens` is what one decode step may add (1 without drafts). `budget_tokens` is shared by
    decoders and prefills in a round; 0 prefills each prompt in one go. `chunk_tokens` is the
    executor's legal prefill unit: `aligned` windows at multiples of it, whose last prompt token is
    left to decode, or `ceil`, whole prompts cut from their start. `prefix_bytes` is the store of
    prefixes (0: none); its entries lie at multiples of `boundary_tokens`, told apart by keys every
    `prefix_step_tokens`, and are worth at least `min_shared_tokens`.
    """

    order: str = "fcfs"
    max_passed: int = 64
    step_tokens: int = 1
    grow_tokens: int = 8192
    gen_cap_tokens: int = 16384
    budget_tokens: int = 1024
    chunk_tokens: int = 256
    chunk_rule: Literal["aligned", "ceil"] = "aligned"
    prefix_bytes: int = 0
    prefix_step_tokens: int = 512
    boundary_tokens: int = 512
    min_shared_tokens: int = 1024

    def __post_init__(self) -> None:
        for name in ("step_tokens", "grow_tokens", "gen_cap_tokens", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}", f"set {name} to 1 or more")
        for name in ("prefix_step_tokens", "boundary_tokens", "min_shared_tokens"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}", f"set {name} to 1 or more")
        if self.prefix_bytes < 0:
            raise BadInput(f"prefix store of {self.prefix_bytes} bytes", "set it to 0 or more")
        if self.budget_tokens < 0:
            raise BadInput(
                f"budget is {self.budget_tokens} tokens", "set it to 0 (atomic prefill) or more"
            )
        if self.chunk_rule not in ("aligned", "ceil"):
            raise BadInput(f"chunk rule {self.chunk_rule!r} is unknown", "use aligned or ceil")
