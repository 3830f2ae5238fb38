"""Faults that begin with the second block, the sixth lane or another place, and what is claimed."""

from __future__ import annotations

import pytest

from qwisp.scheduling.contract import Admit, Grant, Move, Operation, Outcome, Place, Round
from qwisp.scheduling.settings import Settings
from qwisp.testing import (
    Report,
    ScriptedRequest,
    ToyEngine,
    check_executor,
    sessions,
    solo_reply,
)
from qwisp.testing.exercised import Tally, boundaries
from qwisp.testing.script import company
from qwisp.testing.toy_engine import checksum

SETTINGS = Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=8)
LAYOUT = sessions(16, 16, 24, 64, margin_rows=3)
NUM_ROWS = 16 + 16 + 24 + 64 + 4 * 3
ROOMY = sessions(320, 700, *[1600] * 8)
ROOMY_SETTINGS = Settings(grow_tokens=4, chunk_tokens=64, budget_tokens=128)
BLOCK = 256


def defined(request: ScriptedRequest) -> list[int]:
    return solo_reply(request, request.output_tokens)


def check(engine: type[ToyEngine] = ToyEngine, replies=lambda engine: engine.replies) -> Report:
    return check_executor(
        lambda requests: engine(requests, NUM_ROWS),
        layout=LAYOUT,
        settings=SETTINGS,
        replies=replies,
    )


def check_long(engine: type[ToyEngine] = ToyEngine, **words) -> Report:
    return check_executor(
        lambda requests: engine(requests, sum(ROOMY.contexts)),
        layout=ROOMY,
        settings=ROOMY_SETTINGS,
        replies=lambda executor: executor.replies,
        **words,
    )


class SumsByPlace(ToyEngine):
    """From the second block on, blocks are summed in an order that follows the place."""

    def next_token(self, request_id: int, rows: list[int]) -> int:
        first = BLOCK * (self.lanes[request_id].place.slot % -(-len(rows) // BLOCK))
        return super().next_token(request_id, rows[first:] + rows[:first])


class PadsToTheLongest(ToyEngine):
    """From the second block on, blocks are padded to those of the longest neighbour."""

    def run(self, round: Round) -> Outcome:
        self.decode = round.decode
        return super().run(round)

    def next_token(self, request_id: int, rows: list[int]) -> int:
        longest = max(-(-self.lanes[i].length // BLOCK) for i in self.decode)
        padding = longest - -(-len(rows) // BLOCK) if len(rows) > BLOCK else 0
        return super().next_token(request_id, rows + [0] * padding)


class WidensForSix(ToyEngine):
    """Its products change their order once six lanes live."""

    def run(self, round: Round) -> Outcome:
        self.is_wide = len(round.decode) >= 6
        return super().run(round)

    def next_token(self, request_id: int, rows: list[int]) -> int:
        return super().next_token(request_id, rows + [1] * self.is_wide)


class CutsByGrant(ToyEngine):
    """A grant that crosses the end of a block writes its next row otherwise than one that ends."""

    def grant(self, op: Grant) -> None:
        super().grant(op)
        edge = -(-(op.start + 1) // BLOCK) * BLOCK
        if edge < op.start + op.num_tokens:
            self.rows[self.lanes[op.id].place.start_row + edge] += 1

    def _check(self, lane, num_rows: int) -> None:
        pass


class WrapsItsRing(ToyEngine):
    """Past its window it forgets the oldest row but for those it looks at in the seventh lane."""

    WINDOW = 100

    def run(self, round: Round) -> Outcome:
        self.seventh = round.decode[6:7]
        return super().run(round)

    def next_token(self, request_id: int, rows: list[int]) -> int:
        keeps = len(rows) > self.WINDOW and (request_id,) == self.seventh
        return super().next_token(request_id, rows[-self.WINDOW - keeps :])


@pytest.mark.parametrize(
    "engine", [SumsByPlace, PadsToTheLongest, WidensForSix, CutsByGrant, WrapsItsRing]
)
def test_what_follows_from_company_is_found(engine: type[ToyEngine]) -> None:
    report = check_long(engine, window_tokens=100)
    assert report.word == "broken"
    assert {finding.rule for finding in report.findings} == {"replies"}
    assert "alone it is" in report.findings[0].what


@pytest.mark.parametrize("engine", [SumsByPlace, PadsToTheLongest, WidensForSix, CutsByGrant])
def test_short_streams_in_few_sessions_cannot_show_it_and_the_report_says_so(
    engine: type[ToyEngine],
) -> None:
    report = check(engine)
    assert report.findings == ()
    missing = " ".join(report.not_exercised)
    assert "a stream that goes on after 1, 2, 5 blocks: the largest session holds 64" in missing
    assert "5, 6, 7 neighbours: give 8 sessions that hold the longest stream" in missing
    assert "a grant that ends with a block" in missing


class RescalesAsItGoes(ToyEngine):
    """The same in all company, but not what its definition says."""

    def next_token(self, request_id: int, rows: list[int]) -> int:
        running = rows[:BLOCK]
        for start in range(BLOCK, len(rows), BLOCK):
            running = [checksum(running), *rows[start : start + BLOCK]]
        return super().next_token(request_id, running)


class RoundsItsScores(ToyEngine):
    """The same, from the first row on."""

    def next_token(self, request_id: int, rows: list[int]) -> int:
        return super().next_token(request_id, [row & ~1 for row in rows])


@pytest.mark.parametrize("engine", [RescalesAsItGoes, RoundsItsScores])
def test_what_is_wrong_in_all_company_alike_is_found_by_its_definition(
    engine: type[ToyEngine],
) -> None:
    blind = check_long(engine)
    assert blind.findings == ()
    assert blind.not_exercised[-1].startswith("the definition: give `reference`")
    report = check_long(engine, reference=defined)
    assert {finding.rule for finding in report.findings} == {"replies"}
    assert all("by definition it is" in finding.what for finding in report.findings)


def test_a_roomy_layout_leaves_nothing_of_it_untried() -> None:
    report = check_long(reference=defined, window_tokens=100).require()
    found = report.exercised
    # 5 x 256 - 3 prompt tokens, and a reply that lasts until 8 prompts were prefilled, two
    # chunks of 64 a round: 1277, 509, 257, 253, 201, 97, 7 and 1 tokens take 24 rounds; 8 more.
    assert found.longest_tokens >= 1277 + 32
    assert found.crossed == (1, 2, 5)
    assert 1 in found.wrapped
    assert found.neighbours == (0, 1, 2, 3, 4, 5, 6, 7)
    assert len(found.beside_blocks) >= 3
    assert min(found.places, found.positions) >= 5
    assert found.longest_moved > BLOCK
    assert report.not_exercised == (
        "logits: let `replies` give (token, digest of its raw logits) a token",
    )
    assert report.word == "same tokens"


def test_evidence_beside_every_token_makes_the_word_stronger() -> None:
    def with_evidence(engine: ToyEngine) -> dict[int, list[tuple[int, int]]]:
        return {i: [(token, -token) for token in reply] for i, reply in engine.replies.items()}

    report = check(replies=with_evidence)
    assert report.word == "identical"
    assert str(report).startswith(f"identical: {report.num_compared} requests alone, step by step")
    assert not any(what.startswith("logits") for what in report.not_exercised)


def test_own_requests_are_the_only_ones_and_the_report_counts_them() -> None:
    asked = [ScriptedRequest(1, 10, 8, 8), ScriptedRequest(2, 3, 2, 2, arrives=2)]
    report = check_executor(
        lambda requests: ToyEngine(requests, 128),
        layout=sessions(64, 64),
        settings=Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=0),
        requests=asked,
        replies=lambda engine: engine.replies,
    )
    found = report.exercised
    assert report.num_compared == 2
    assert (found.longest_tokens, found.neighbours, found.moves) == (18, (0, 1), 0)
    assert (found.places, found.positions, found.cuts) == (2, 2, 1)


def test_without_replies_nothing_was_compared() -> None:
    report = check(replies=None)
    assert (report.word, report.num_compared) == ("not compared", 0)


def test_a_boundary_is_crossed_by_the_step_that_reads_past_it() -> None:
    assert boundaries(255, 256, BLOCK) == set()
    assert boundaries(256, 257, BLOCK) == {1}
    assert boundaries(257, 512, BLOCK) == set()
    assert boundaries(1, 1281, BLOCK) == {1, 2, 3, 4, 5}
    assert boundaries(257, 256, BLOCK) == set()


def test_a_tally_knows_where_a_stream_sat_and_who_was_beside_it() -> None:
    tally = Tally(BLOCK)
    places = [Place(n, 700 * n, 700, 700) for n in range(4)]
    prompts = {1: 256, 2: 600, 3: 10, 4: 300}

    def round(*ops: Operation, decode: tuple[int, ...]) -> None:
        tally.look(Round(0, ops, decode, 1, False), Outcome(1), dict.fromkeys(decode, 1))

    round(*[Admit(i, places[i - 1], n) for i, n in prompts.items()], decode=(2, 3))
    assert tally.exercised.beside_blocks in [(1,), (3,)]
    round(decode=(4, 2))
    assert tally.exercised.beside_blocks == (1, 2)  # the 3 blocks of stream 2 have met both
    round(decode=(1,))  # reads 256 keys
    assert tally.exercised.crossed == ()
    round(Move(1, places[0], places[3], 257), decode=(1,))  # and 257
    found = tally.exercised
    assert found.crossed == (1,)
    assert (found.longest_tokens, found.neighbours) == (602, (0, 1))
    assert (found.places, found.positions) == (2, 2)
    assert (found.moves, found.longest_moved, found.pauses) == (1, 257, 0)


def test_company_asks_for_no_more_than_the_largest_session_holds() -> None:
    short = company(LAYOUT, SETTINGS, BLOCK)
    assert all(request.prompt_tokens + request.output_tokens < 64 for request in short.runs[0])
    assert max(r.prompt_tokens for run in short.runs for r in run) == 33
    long = company(ROOMY, ROOMY_SETTINGS, BLOCK)
    assert [len(run) for run in long.runs[:5]] == [8, 7, 6, 8, 2]
    assert long.wanted_tokens == max(r.prompt_tokens + r.output_tokens for r in long.runs[0]) + 1
    streams = {request.id: request for run in long.runs for request in run}
    assert sorted(r.prompt_tokens for r in streams.values()) == [1, 7, 33, 60, 253, 257, 509, 1277]


def test_a_ring_that_never_wrapped_and_a_reply_that_lacks_a_token_are_told() -> None:
    report = check_executor(
        lambda requests: ToyEngine(requests, NUM_ROWS),
        layout=LAYOUT,
        settings=SETTINGS,
        replies=lambda engine: {i: reply[:-1] for i, reply in engine.replies.items()},
        window_tokens=1000,
    )
    assert {finding.rule for finding in report.findings} == {"produced"}
    assert any(what.startswith("a ring that wraps after 1,000") for what in report.not_exercised)


def test_one_small_session_and_whole_prompts_leave_all_of_it_untried() -> None:
    report = check_executor(
        lambda requests: ToyEngine(requests, 64),
        layout=sessions(64),
        settings=Settings(grow_tokens=4, chunk_tokens=4, budget_tokens=0),
        replies=lambda engine: engine.replies,
    )
    assert report.findings == ()
    told = [what.partition(":")[0] for what in report.not_exercised]
    assert told == [
        "a stream that goes on after 1, 2, 5 blocks",
        "1, 5, 6, 7 neighbours",
        "one stream beside short and long neighbours",
        "one stream in two places",
        "one prompt cut in two ways",
        "a grant that ends with a block",
        "a move of more than a block",
        "logits",
        "the definition",
    ]
