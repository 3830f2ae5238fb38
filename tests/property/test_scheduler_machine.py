"""Random rounds of a random engine: every invariant of the scheduler, by books of our own."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwisp.facts.record import Recorded, facts_of
from qwisp.facts.replay import replay_records
from qwisp.scheduling.contract import Fact, Round
from qwisp.scheduling.drive import deliver
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty
from qwisp.testing import ScriptedRequest, ToyEngine, solo_reply

from .books import SIZE, Books


def random_layout(rng: Random) -> Layout:
    kind = rng.choice(["sized", "sized", "sized", "per_request", "whole_window", "fixed_arena"])
    contexts = (rng.choice([60, 90]),) * rng.randint(1, 5)
    if kind == "sized":
        contexts = tuple(rng.choice([12, 20, 20, 40, 80]) for _ in range(rng.randint(1, 7)))
        return Layout.sessions(*contexts, margin_rows=rng.choice([0, 3]))
    if kind == "per_request":
        return Layout.free(rng.choice([150, 400, 800]), 100, lanes=rng.randint(1, 6))
    return Layout.windows(len(contexts), contexts[0], kind=kind)


def random_settings(rng: Random) -> Settings:
    return Settings(
        order=rng.choice(["fcfs", "fcfs", "first_fit", "sjf"]),
        max_passed=rng.choice([0, 1, 3]),
        step_tokens=rng.choice([1, 1, 2, 5]),
        grow_tokens=rng.choice([1, 4, 10, 100]),
        gen_cap_tokens=rng.choice([10, 30, 16384]),
        budget_tokens=rng.choice([0, 1, 8, 20]),
        chunk_tokens=rng.choice([1, 4, 16]),
        chunk_rule=rng.choice(["aligned", "ceil"]),
        prefix_bytes=rng.choice([0, 0, 100, 300, 900]),
        prefix_step_tokens=rng.choice([4, 8]),
        boundary_tokens=rng.choice([1, 4, 8]),
        min_shared_tokens=rng.choice([1, 4, 12]),
    )


def random_prefix(rng: Random, number: int, prompt_tokens: int, step: int) -> tuple[int, ...]:
    """Keys of a prompt that shares its start with others of its family."""
    num_keys = prompt_tokens // step
    shared, family = rng.randint(0, num_keys), rng.randint(1, 3)
    return tuple(
        family * 1000 + at if at < shared else 100_000 + number * 1000 + at
        for at in range(num_keys)
    )


class Machine:
    """One episode: a scheduler, a random engine, random clients, and the books."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.layout, self.settings = random_layout(rng), random_settings(rng)
        self.books = Books(self.layout, self.settings)
        space = RowSpace(self.layout, SIZE)
        self.scheduler = Scheduler(space, self.settings)
        step_tokens = self.settings.step_tokens
        self.engine = ToyEngine(
            [],
            space.num_rows,
            yields=None if step_tokens == 1 else lambda _: rng.randint(1, step_tokens),
            reads_late=rng.random() < 0.5,
            prefix_step_tokens=self.settings.prefix_step_tokens,
        )
        self.fault_rate = rng.choice([0, 0, 0.02, 0.1])
        self.recorded = Recorded(Faulty(self.engine, self._fails))
        self.num_rounds = 0
        self.draining = False

    def _fails(self, round: Round) -> list[int]:
        if self.rng.random() >= self.fault_rate:
            return []
        num = len(round.ops) + len(round.decode)
        return sorted(self.rng.sample(range(num), self.rng.randint(1, min(2, num))))

    def arrive(self, index: int) -> None:
        rng, number = self.rng, len(self.books.requests)
        request = ScriptedRequest(
            number,
            rng.choice([1, rng.randint(1, 12), rng.randint(1, 90)]),
            rng.choice([1, rng.randint(1, 10), rng.randint(1, 100)]),
            rng.choice([None, rng.randint(1, 20), rng.randint(1, 100)]),
        )
        step = self.settings.prefix_step_tokens
        if self.settings.prefix_bytes:
            prefix = random_prefix(rng, number, request.prompt_tokens, step)
            request = request._replace(prefix=prefix)
        self.engine.expect(request)
        fact = Fact(index, ask=request.ask)
        self.recorded.keep([fact])
        refused = self.scheduler.counts["refused"]
        deliver(self.scheduler, [fact])
        self.books.asked(request, self.scheduler.counts["refused"] - refused)
        self.books.look(self.scheduler)

    def cancel(self) -> None:
        number = self.rng.randrange(len(self.books.requests) + 1)
        fact = Fact(self.scheduler.index, cancel=number)
        self.recorded.keep([fact])
        was_live = number in self.scheduler.live
        deliver(self.scheduler, [fact])
        assert number not in self.scheduler.live
        if was_live:
            self.books.over(number)
        self.books.look(self.scheduler)

    def play(self) -> bool:
        """Plan, run and settle once; False when there is nothing to do."""
        round = self.scheduler.plan()
        if round is None:
            assert not self.scheduler.live
            assert not self.books.due
            return False
        assert round.ops or round.decode, "an empty round"
        self.num_rounds += 1
        self.books.read(round)
        count = self.rng.choice([1, 2, 1000])
        outcome = self.recorded.run(round._replace(repeat=min(count, round.repeat)))
        if outcome.rounds > 1 and not round.wakes:
            num = 0 if self.draining else self.rng.choice([0, 0, 1, 2])
            for at in sorted(self.rng.randrange(1, outcome.rounds) for _ in range(num)):
                self.arrive(round.index + at)
        self.scheduler.settle(round, outcome)
        self.books.settle(round, outcome)
        self.books.look(self.scheduler)
        return True

    def episode(self, max_rounds: int) -> None:
        arrivals = self.rng.choice([0.1, 0.3, 0.8])
        while self.num_rounds < max_rounds:
            while len(self.books.waiting) < 12 and self.rng.random() < arrivals:
                self.arrive(self.scheduler.index)
            while self.rng.random() < 0.03:
                self.cancel()
            if not self.play():
                self.arrive(self.scheduler.index)
        self.draining = True
        while self.play():
            assert self.num_rounds < max_rounds + 10_000, "a stream that never ends"
        assert self.books.told.keys() == self.books.requests.keys()
        step = self.settings.prefix_step_tokens
        for number, reply in self.engine.replies.items():
            assert reply == solo_reply(self.books.requests[number], len(reply), step)
            assert len(reply) == self.books.tokens[number]
        for entry in self.scheduler.log:
            if entry.kind in ("finished", "failed", "cancelled"):
                assert entry.what.num_tokens == self.books.tokens[entry.id], "tokens miscounted"
        self.same_facts_give_the_same_log()

    def same_facts_give_the_same_log(self) -> None:
        again = replay_records(facts_of(self.recorded), self.layout, SIZE, self.settings)
        assert again.log == self.scheduler.log


def run_rounds(seed: int, num_rounds: int, episode_rounds: int = 250) -> Counter[str]:
    rng, done, kinds = Random(seed), 0, Counter()
    while done < num_rounds:
        machine = Machine(rng)
        machine.episode(episode_rounds)
        done += machine.num_rounds
        kinds += machine.books.kinds
    return kinds


@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_random_rounds_keep_every_invariant(seed: int) -> None:
    kinds = run_rounds(seed, 25_000)
    for kind in ("Resume", "Move", "Pause", "Restore", "Capture", "Drop"):
        assert kinds[kind] >= 40, kinds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_million_random_rounds_keep_every_invariant(seed: int) -> None:
    run_rounds(seed, 25_000)


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_rounds_chosen_by_hypothesis_keep_every_invariant(rng: Random) -> None:
    Machine(rng).episode(50)
