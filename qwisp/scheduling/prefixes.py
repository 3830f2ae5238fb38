"""Prefix decisions of the scheduler: restore on admission, capture on the way, wait for a capture.

Rows that decode wrote are never stored: they are not the bits that prefill would write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qwisp.errors import SchedulerBug
from qwisp.scheduling.contract import Capture, Drop, Outcome, Restore, Round
from qwisp.scheduling.prefix_store import (
    Entry,
    PrefixStore,
    Tier,
    common_tokens,
    leading_keys,
    on_grid,
    plan_prefix,
)

if TYPE_CHECKING:
    from qwisp.scheduling.layout import SessionSize
    from qwisp.scheduling.lines import Prefills
    from qwisp.scheduling.settings import Settings
    from qwisp.scheduling.stream import Stream

# Keys remembered of prompts seen so far, in each of two generations.
MAX_SEEN_KEYS = 2**17


class _Seen:
    """Keys of prompts: seen at least once, and seen again."""

    __slots__ = ("again", "once")

    def __init__(self) -> None:
        self.once: set[int] = set()
        self.again: set[int] = set()


class NoPrefixes:
    """No store: nothing is restored, captured or waited for."""

    is_on = False

    def see(self, stream: Stream) -> None:
        """Remember the keys of a prompt; later ones that share them will be told apart."""

    def holds_back(self, stream: Stream) -> bool:
        """Whether the stream should wait for the capture of a prefill in flight."""
        return False

    def admit(self, stream: Stream) -> Restore | None:
        """Return the restore of an admitted stream, and note what it shall capture."""

    def next_stop(self, stream: Stream) -> int | None:
        """Return the next position at which the prefill must pause to be captured."""

    def capture(self, stream: Stream, reached: int) -> tuple[Sequence[Drop], Sequence[Capture]]:
        """Return drops and captures of a stream whose prefill reaches `reached` in this round."""
        return (), ()

    def settle(self, round: Round, outcome: Outcome) -> bool:
        """Make this round's captures usable, abandon those that failed; any planned?"""
        return False

    def forget(self, stream: Stream) -> None:
        """A stream left: it captures nothing more."""

    def check(self) -> None:
        """Raise `SchedulerBug` unless the store is sound and only prefills are to be captured."""


class Prefixes(NoPrefixes):
    """The store, the keys seen so far, and what every prefilling stream will capture where."""

    is_on = True

    def __init__(self, settings: Settings, size: SessionSize, prefills: Prefills) -> None:
        self.store = PrefixStore(settings.prefix_bytes, size)
        self._settings = settings
        self._prefills = prefills
        self._least_keys = -(-settings.min_shared_tokens // settings.prefix_step_tokens)
        self._seen = _Seen(), _Seen()  # two generations: the older one is forgotten as a whole
        self._captures: dict[int, dict[int, Tier]] = {}  # by stream: position -> tier
        self._restored: dict[int, Entry] = {}
        self._pinned: set[int] = set()
        self._planned: list[tuple[int, Entry]] = []
        self._passed = False  # a place to capture was reached: who waited for it must look again

    # ---- arrivals ----------------------------------------------------------------------------

    def see(self, stream: Stream) -> None:
        """Remember the keys of a prompt; later ones that share them will be told apart."""
        (new, old), keys = self._seen, set(stream.ask.prefix)
        new.again |= keys & new.once | keys & old.once
        new.once |= keys
        if len(new.once) > MAX_SEEN_KEYS:
            self._seen = _Seen(), new

    def _shared_with_others(self, stream: Stream) -> int:
        """Return the tokens shared with any other prompt seen: its own keys count once."""
        prefix, (new, old) = stream.ask.prefix, self._seen
        num = leading_keys(len(prefix), lambda i: prefix[i] in new.again or prefix[i] in old.again)
        return min(num * self._settings.prefix_step_tokens, stream.prompt_tokens)

    # ---- admission ---------------------------------------------------------------------------

    def holds_back(self, stream: Stream) -> bool:
        """Whether the stream should wait for the capture of a prefill in flight.

        It waits if fewer tokens are left until that capture than it shares; a prefill that has not
        reached the end of what both share yet is told to capture there.
        """
        settings, prefix = self._settings, stream.ask.prefix
        # Equal keys where `min_shared_tokens` end: sharing less is not worth a capture.
        at = slice(self._least_keys - 1, self._least_keys)
        akin = [other for other in self._prefills if other.ask.prefix[at] == prefix[at]]
        if not prefix[at] or not akin:
            return False
        entry = self.store.hit(prefix, stream.prompt_tokens)
        have = entry.num_tokens if entry else 0
        for other in akin:
            shared = common_tokens(
                prefix,
                stream.prompt_tokens - 1,
                other.ask.prefix,
                other.prompt_tokens - 1,
                settings.prefix_step_tokens,
            )
            plan = plan_prefix(
                stream.prompt_tokens,
                have,
                shared,
                min_shared_tokens=settings.min_shared_tokens,
                boundary_tokens=settings.boundary_tokens,
            )
            if plan.capture is None:
                continue
            planned = self._captures.get(other.id, {})
            useful = [at for at in planned if have < at <= plan.capture]
            if not useful and self._add(other, plan.capture, "shared"):
                useful = [plan.capture]
            # Equal when the other has not begun either: being ahead, it is the one to begin.
            if useful and max(useful) - other.position <= plan.capture:
                return True
        return False

    def admit(self, stream: Stream) -> Restore | None:
        """Return the restore of an admitted stream, and note what it shall capture."""
        settings, prompt_tokens = self._settings, stream.prompt_tokens
        prefix = stream.ask.prefix
        if not prefix:
            return None
        entry = self.store.hit(prefix, prompt_tokens)
        plan = plan_prefix(
            prompt_tokens,
            entry.num_tokens if entry else 0,
            self._shared_with_others(stream),
            min_shared_tokens=settings.min_shared_tokens,
            boundary_tokens=settings.boundary_tokens,
        )
        if entry is not None:
            self.store.touch(entry)
            self._pinned.add(entry.key)
            self._restored[stream.id] = entry
        stream.position = plan.restore
        if plan.save:
            for at in {prompt_tokens - 1, min(stream.ask.message_tokens, prompt_tokens - 1)}:
                self._add(stream, on_grid(at, settings.boundary_tokens), "conversation")
        if plan.capture is not None:
            self._add(stream, plan.capture, "shared")
        return None if entry is None else Restore(stream.id, entry.key, entry.num_tokens)

    def _add(self, stream: Stream, position: int, tier: Tier) -> bool:
        """Note that a stream is to be captured at a position; False where that cannot be."""
        keyed_tokens = len(stream.ask.prefix) * self._settings.prefix_step_tokens
        least_tokens = max(stream.position + 1, self._settings.min_shared_tokens)
        if not least_tokens <= position <= keyed_tokens:
            return False
        if not self.store.could_hold(position, tier):
            return False
        self._captures.setdefault(stream.id, {})[position] = tier
        return True

    # ---- prefill -----------------------------------------------------------------------------

    def next_stop(self, stream: Stream) -> int | None:
        """Return the next position at which the prefill must pause to be captured."""
        captures = self._captures.get(stream.id)
        if not captures:
            return None
        last = stream.prefill_end - 1  # with whole prompts the last stop is the end itself
        at = min(captures)
        return None if at == last and stream.prefill_end == stream.prompt_tokens else at

    def capture(self, stream: Stream, reached: int) -> tuple[Sequence[Drop], Sequence[Capture]]:
        """Return drops and captures of a stream whose prefill reaches `reached` in this round.

        With whole prompts prefilled (`ceil`), the state before the last token is taken at the end.
        """
        drops: list[Drop] = []
        captures: list[Capture] = []
        due = self._captures.get(stream.id)
        if not due:
            return drops, captures
        last = stream.prompt_tokens - 1
        if reached == last < stream.prefill_end:
            return drops, captures  # however the rounds fall, it is taken at the end
        end = last if reached >= stream.prefill_end else reached
        for position in sorted(at for at in due if at in (reached, end)):
            key = stream.ask.prefix[-(-position // self._settings.prefix_step_tokens) - 1]
            tier = due.pop(position)
            self._passed = True
            if tier == "conversation":
                self._supersede(stream, drops)
            entry, victims = self.store.reserve(key, position, tier, self._pinned)
            drops += [Drop(victim.key) for victim in victims]
            if entry is not None:
                captures.append(Capture(stream.id, key, position))
                self._planned.append((stream.id, entry))
        return drops, captures

    def _supersede(self, stream: Stream, drops: list[Drop]) -> None:
        """Drop the conversation entry this one grew from: the longer one replaces it."""
        old = self._restored.pop(stream.id, None)
        if old is None or old.tier != "conversation" or old.key in self._pinned:
            return
        if self.store.holds(old):
            self.store.drop(old)
            drops.append(Drop(old.key))

    # ---- settlement --------------------------------------------------------------------------

    def settle(self, round: Round, outcome: Outcome) -> bool:
        """Make this round's captures usable, abandon those that failed; any planned?"""
        self._pinned.clear()
        lost = _lost_captures(round, outcome)
        planned, self._planned = self._planned, []
        for stream_id, entry in planned:
            if (stream_id, entry.key) in lost:
                self.store.abandon(entry)
            else:
                self.store.commit(entry)
        passed, self._passed = self._passed, False
        return passed

    def forget(self, stream: Stream) -> None:
        """A stream left: it captures nothing more."""
        self._captures.pop(stream.id, None)
        self._restored.pop(stream.id, None)

    def check(self) -> None:
        """Raise `SchedulerBug` unless the store is sound and only prefills are to be captured."""
        self.store.check()
        prefilling = {stream.id: stream for stream in self._prefills}
        for stream_id, due in self._captures.items():
            if due and (stream_id not in prefilling or min(due) < prefilling[stream_id].position):
                raise SchedulerBug(f"request {stream_id} can no longer be captured at {min(due)}")


def _lost_captures(round: Round, outcome: Outcome) -> set[tuple[int, int]]:
    """Return (id, key) of captures that did not happen: failed, or after a failed operation."""
    if not outcome.failed:
        return set()
    first: dict[int, int] = {}
    for position, _ in outcome.failed:
        if position < len(round.ops):
            first.setdefault(getattr(round.ops[position], "id", -1), position)
    return {
        (op.id, op.key)
        for position, op in enumerate(round.ops)
        if isinstance(op, Capture) and position >= first.get(op.id, position + 1)
    }
