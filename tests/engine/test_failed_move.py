"""What fails ends its own stream and no other: a move, and anything in any repeat of a round."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import pytest

from qwisp.engine import executor as executor_module
from qwisp.engine import sampling
from qwisp.engine.clients import ScriptedClients, TokenRequest
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.model.decoder import Decoder
from qwisp.engine.model.mixers import Attention
from qwisp.engine.sampling import Sampling
from qwisp.scheduling.contract import Admit, End, Move, Outcome, Round
from qwisp.scheduling.settings import Settings
from qwisp.scheduling.wrappers import Faulty

from .hand import Hand
from .runs import CHUNK, Ran, prompts, replayed, run, sized

pytestmark = pytest.mark.mlx


def test_the_end_of_a_stream_that_could_not_move_leaves_the_newcomers_rows_alone() -> None:
    requests = prompts([40, 20], seed=5)
    layout, max_new = sized([200, 64]), {0: 100, 1: 10}

    def fails(round: Round) -> list[int]:
        return [n for n, op in enumerate(round.ops) if isinstance(op, Move)]

    ran = run(
        "hybrid",
        requests,
        max_new,
        layout=layout,
        arrivals={1: 24},
        wrap=lambda inner: Faulty(inner, fails),
        poisons=True,
    )
    shared = [round for round in ran.rounds if any(isinstance(op, Move) for op in round.ops)]
    (move,) = [op for op in shared[0].ops if isinstance(op, Move)]
    (admit,) = [op for op in shared[0].ops if isinstance(op, Admit)]
    assert admit.place.start_row == move.source.start_row
    assert ran.scheduler.counts["failed"] == 1
    alone = run("hybrid", {1: requests[1]}, {1: 10}, layout=layout, poisons=True)
    assert ran.replies[1].tokens == alone.replies[1].tokens


# ---- a failure at every call site, in every repeat ----------------------------------------------

LAYOUT = sized([84, 84, 84, 460])
SETTINGS = Settings(grow_tokens=16, chunk_tokens=CHUNK, budget_tokens=64)
LANES, PROMPT = (0, 1, 2), 3  # three replies go on while a long prompt is read
MAX_NEW = {0: 22, 1: 26, 2: 24, 3: 3}
SITES = {
    "grant": (Decoder, "prefill"),
    "decode": (Decoder, "decode"),
    "half a decode": (Attention, "decode"),  # of the second block: the first has written its rows
    "issue": (executor_module.mx, "async_eval"),
    "read": (executor_module, "raw_words"),
    "draw": (sampling, "draw"),
    "client": (ScriptedClients, "token"),
}
STEP = ("decode", "half a decode", "issue", "read")  # nobody's own: they end who took part


def asked() -> dict[int, TokenRequest]:
    made = prompts([7, 20, 3, 440], seed=8)
    return {
        i: TokenRequest(prompt=r.prompt, sampling=Sampling(temperature=0.9, seed=i))
        for i, r in made.items()
    }


class Site:
    """A function that raises at one of its calls: the `nth`, or the `nth` for a lane."""

    def __init__(self, site: str, nth: int = -1, lane: int | None = None) -> None:
        self.site, self.nth, self.lane = site, nth, lane
        self.calls: Counter = Counter()

    def __call__(self, *args, **kwargs):
        lane = None
        if self.site == "draw":
            lane = args[1].seed
        if self.site == "client":
            lane = args[1]
        self.calls[lane] += 1
        if lane == self.lane and self.calls[lane] - 1 == self.nth:
            raise RuntimeError(f"no luck with the {self.site}\nsecond line")
        return self.real(*args, **kwargs)

    def put(self, patch: pytest.MonkeyPatch) -> None:
        owner, name = SITES[self.site]
        self.real = getattr(owner, name)
        patch.setattr(owner, name, lambda *a, **k: self(*a, **k))


def go(ahead: int, patch: pytest.MonkeyPatch, site: Site) -> tuple[Ran, dict, list]:
    """Return a run, the calls that the site had seen as each round began, and the outcomes."""
    marks: dict[int, Counter] = {}
    outcomes: list[tuple[Round, Outcome]] = []
    site.put(patch)
    real_run = MlxExecutor.run

    def marked(self: MlxExecutor, round: Round) -> Outcome:
        marks[round.index] = Counter(site.calls)
        outcomes.append((round, real_run(self, round)))
        return outcomes[-1][1]

    patch.setattr(MlxExecutor, "run", marked)
    ran = run(
        "llama",
        asked(),
        MAX_NEW,
        layout=LAYOUT,
        arrivals={PROMPT: 4},
        settings=SETTINGS,
        ahead=ahead,
        poisons=True,
    )
    patch.undo()
    return ran, marks, outcomes


@lru_cache
def undisturbed(ahead: int, site: str) -> tuple[Ran, dict, Round]:
    """Return the sound run and its first repeated round that reads a part of the prompt."""
    ran, marks, outcomes = go(ahead, pytest.MonkeyPatch(), Site(site))
    repeated = next(r for r, _ in outcomes if r.repeat > 3 and r.ops)
    assert repeated.decode == LANES
    assert all(reply.end.reason == "length" for reply in ran.replies.values())
    return ran, marks, repeated


LAST = 4  # of the round's five repeats
CASES = [
    *((site, n, None) for site in ("grant", *STEP) for n in (0, 1, 2, LAST)),
    *((site, n, lane) for site in ("draw", "client") for n in (0, 1, 2, LAST) for lane in LANES),
]
QUICK = [
    *((site, 1, None) for site in ("grant", *STEP)),
    *(("grant", LAST, None), ("decode", 2, None)),
    *((site, n, lane) for site in ("draw", "client") for n, lane in ((0, 0), (1, 1), (LAST, 2))),
]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in QUICK else pytest.mark.slow) for c in CASES], ids=str
)
def test_a_failure_in_any_repeat_is_its_own_streams_and_the_others_go_on(
    case: tuple, ahead: int
) -> None:
    site, n, lane = case
    sound, marks, repeated = undisturbed(ahead, site)
    assert repeated.repeat == LAST + 1
    nth = marks[repeated.index][lane] + n * (2 if site == "half a decode" else 1)
    fault = Site(site, nth + (site == "half a decode"), lane)
    ran, _, outcomes = go(ahead, pytest.MonkeyPatch(), fault)
    (round, outcome) = next(pair for pair in outcomes if pair[1].failed)
    assert round == repeated
    victims = {PROMPT} if site == "grant" else {lane} if lane is not None else set(LANES)
    found = {("grant" if at < 1 else "decode", (PROMPT, *LANES)[at]) for at, _ in outcome.failed}
    assert found == {("grant" if site == "grant" else "decode", i) for i in victims}
    assert all(f"no luck with the {site}" in why for _, why in outcome.failed)
    assert not any("second line" in why for _, why in outcome.failed)
    # What is only seen when a step is read is seen a round late where the next was issued before.
    late = int(ahead and n < LAST and site in ("draw", "client", "read"))
    assert outcome.rounds == n + 1 + late
    assert dict(outcome.produced) == (dict.fromkeys(victims, n) if late else {})
    for i, reply in ran.replies.items():
        whole = sound.replies[i]
        assert np.array_equal(reply.logits, whole.logits[: len(reply.logits)])
        if i in victims:
            assert (reply.end.outcome, reply.end.truncated) == ("failed", False)
            mine = [o.rounds for r, o in outcomes if r.index < repeated.index and i in r.decode]
            assert reply.tokens == whole.tokens[: sum(mine) + n if mine else 0]
        else:
            assert (reply.tokens, reply.end) == (whole.tokens, whole.end)
    assert replayed(ran) == ran.scheduler.log
    assert replayed(ran, stepwise=True) == ran.scheduler.log


def test_a_client_without_a_request_and_one_that_cannot_hear_the_end_fail_alone(monkeypatch):
    hand = Hand("llama", [100, 100, 100], prompts([9, 9, 9], seed=2))
    assert hand.start(0, 0).failed == ()
    del hand.script._requests[1]
    (one,) = hand.start(1, 1).failed
    assert one == (0, "its client failed: KeyError: 1")
    admit = Admit(2, hand.places[2], 10)
    (two,) = hand.round(admit, decode=[0]).failed
    assert two == (0, "the prompt has 9 tokens, 10 were announced")

    for token in (256, 2**40, -1):  # a lookup beyond the table would read what lies there
        hand.script._requests[2] = TokenRequest(prompt=(5, token, 7))
        (three,) = hand.round(Admit(2, hand.places[2], 3)).failed
        assert three == (0, f"the prompt holds token {token}")

    def ended(self: ScriptedClients, end: End) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(ScriptedClients, "ended", ended)
    outcome = hand.round(End(2, "failed", "x", hand.places[2]), decode=[0])
    assert outcome == (
        1,
        (),
        (),
        ((0, "its client failed: BrokenPipeError: [Errno 32] Broken pipe"),),
    )
    assert len(hand.script.replies[0].tokens) == 2


def test_a_step_that_fails_after_a_reply_ended_fails_the_others_alone(monkeypatch):
    """Issued ahead, it runs beside the end of a reply: that one stopped, and is not failed."""
    asked = prompts([9, 12], seed=2)

    def begun(requests: dict[int, TokenRequest]) -> Hand:
        hand = Hand("llama", [100, 100], requests, ahead=1)
        assert [hand.start(i, i).failed for i in (0, 1)] == [(), ()]
        return hand

    sound = begun(asked)
    sound.round(decode=[0, 1], steps=6)
    tokens = sound.script.replies[0].tokens
    at = next(n for n in range(1, 6) if tokens[n] not in tokens[:n])
    stop = frozenset({tokens[at]})
    hand = begun({0: TokenRequest(prompt=asked[0].prompt, stop_tokens=stop), 1: asked[1]})
    site = Site("read", nth=at + 1)
    site.put(monkeypatch)
    outcome = hand.round(decode=[0, 1], steps=20)
    assert (outcome.rounds, outcome.stopped) == (at + 2, (0,))
    assert outcome.failed == ((1, "decode failed: no luck with the read"),)
    assert dict(outcome.produced) == {0: at + 1}
    assert hand.script.replies[1].tokens == sound.script.replies[1].tokens[: at + 1]
