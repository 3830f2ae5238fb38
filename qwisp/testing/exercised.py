"""What the runs of a check really held: how long, how many beside, where, cut and moved how."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from qwisp.scheduling.contract import Admit, Grant, Move, Outcome, Pause, Place, Resume, Round

BLOCK_TOKENS = 256
WANTED_BLOCKS = (1, 2, 5)
WANTED_NEIGHBOURS = (1, 5, 6, 7)


class Exercised(NamedTuple):
    """Counts over every run of a check; "one stream" is the one that saw the most.

    `crossed` and `wrapped`: after how many blocks, or windows, a decoding stream went on into the
    next. `neighbours`: how many others decoded beside a stream. `beside_blocks`: lengths in blocks
    of the longest neighbour that one stream had. `places` and `positions`: where one stream sat in
    the cache, and in a round's decode list. `cuts`: ways in which one prompt was cut into grants.
    `block_ends`: grants that ended where a block ends. `longest_moved` is in rows.
    """

    longest_tokens: int
    crossed: tuple[int, ...]
    wrapped: tuple[int, ...]
    neighbours: tuple[int, ...]
    beside_blocks: tuple[int, ...]
    places: int
    positions: int
    cuts: int
    block_ends: int
    moves: int
    longest_moved: int
    pauses: int
    repeats: int

    def __str__(self) -> str:
        return (
            f"longest stream {self.longest_tokens:,} tokens; "
            f"blocks crossed: {_listed(self.crossed)}; windows wrapped: {_listed(self.wrapped)}; "
            f"neighbours: {_listed(self.neighbours)}; the longest beside one stream, in blocks: "
            f"{_listed(self.beside_blocks)}; one stream in {self.places} places, at "
            f"{self.positions} positions; one prompt cut in {self.cuts} ways; "
            f"{self.block_ends} grants that ended with a block; {self.moves} moves, the longest of "
            f"{self.longest_moved:,} rows; {self.pauses} pauses; {self.repeats} repeated rounds"
        )


class Tally:
    """Counts what rounds hold, over any number of runs of the same requests."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS, window_tokens: int | None = None) -> None:
        self.block_tokens = block_tokens
        self.window_tokens = window_tokens
        self._longest = self._moves = self._moved = self._pauses = self._repeats = 0
        self._block_ends = 0
        self._crossed: set[int] = set()
        self._wrapped: set[int] = set()
        self._neighbours: set[int] = set()
        self._beside: dict[int, set[int]] = defaultdict(set)
        self._places: dict[int, set[Place]] = defaultdict(set)
        self._positions: dict[int, set[int]] = defaultdict(set)
        self._cuts: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        self.start()

    def start(self) -> None:
        """Begin a run: no stream lives."""
        self._place: dict[int, Place] = {}
        self._keys: dict[int, int] = {}
        self._read: dict[int, int] = {}  # keys that the last decode step read
        self._ends: dict[int, list[int]] = {}

    def look(self, round: Round, outcome: Outcome, yielded: Mapping[int, int]) -> None:
        """Count a round that ran; `yielded` holds the tokens of each decoding stream."""
        for op in round.ops:
            if isinstance(op, Admit):
                self._place[op.id], self._keys[op.id] = op.place, op.prompt_tokens
                self._ends[op.id] = []
            elif isinstance(op, Move | Resume):
                self._place[op.id] = op.target
                self._moves += 1
                self._moved = max(self._moved, op.num_rows)
            elif isinstance(op, Pause):
                self._pauses += 1
            elif isinstance(op, Grant):
                self._look_at_grant(op, outcome.rounds)
        self._repeats += outcome.rounds > 1
        self._look_at_decode(round.decode, yielded)

    def _look_at_grant(self, op: Grant, rounds: int) -> None:
        first = op.start + op.num_tokens
        ends = range(first, first + rounds * op.num_tokens, op.num_tokens)
        self._block_ends += sum(end % self.block_tokens == 0 for end in ends)
        self._ends[op.id] += ends
        if op.last:
            self._cuts[op.id].add(tuple(self._ends[op.id]))

    def _look_at_decode(self, decode: tuple[int, ...], yielded: Mapping[int, int]) -> None:
        if decode:
            self._neighbours.add(len(decode) - 1)
        blocks = [-(-self._keys[i] // self.block_tokens) for i in decode]
        for position, request_id in enumerate(decode):
            before = self._keys[request_id]
            after = self._keys[request_id] = before + yielded[request_id]
            self._longest = max(self._longest, after)
            first = self._read.get(request_id, before)
            last = self._read[request_id] = after - 1
            self._crossed |= boundaries(first, last, self.block_tokens)
            if self.window_tokens:
                self._wrapped |= boundaries(first, last, self.window_tokens)
            self._positions[request_id].add(position)
            self._places[request_id].add(self._place[request_id])
            others = blocks[:position] + blocks[position + 1 :]
            if others:
                self._beside[request_id].add(max(others))

    @property
    def exercised(self) -> Exercised:
        """What was counted so far."""
        return Exercised(
            longest_tokens=self._longest,
            crossed=tuple(sorted(self._crossed)),
            wrapped=tuple(sorted(self._wrapped)),
            neighbours=tuple(sorted(self._neighbours)),
            beside_blocks=tuple(sorted(max(self._beside.values(), key=len, default=set()))),
            places=_most(self._places),
            positions=_most(self._positions),
            cuts=_most(self._cuts),
            block_ends=self._block_ends,
            moves=self._moves,
            longest_moved=self._moved,
            pauses=self._pauses,
            repeats=self._repeats,
        )


def boundaries(first: int, last: int, step: int) -> set[int]:
    """Return each k such that a stream whose steps read `first` to `last` keys goes past k * step.

    >>> boundaries(255, 256, 256), boundaries(256, 257, 256), boundaries(257, 600, 256)
    (set(), {1}, {2})
    """
    return set(range(max(1, -(-first // step)), (last - 1) // step + 1))


def lacks(
    found: Exercised,
    *,
    block_tokens: int,
    window_tokens: int | None,
    largest_tokens: int,
    wanted_tokens: int,
) -> list[str]:
    """Return what no run held, and what to give for it to be held."""
    give = f"the largest session holds {largest_tokens:,} tokens, give {wanted_tokens:,}"
    missing = []
    if absent := set(WANTED_BLOCKS) - set(found.crossed):
        missing.append(f"a stream that goes on after {_listed(sorted(absent))} blocks: {give}")
    if absent := set(WANTED_NEIGHBOURS) - set(found.neighbours):
        todo = "give 8 sessions that hold the longest stream"
        missing.append(f"{_listed(sorted(absent))} neighbours: {todo}")
    if window_tokens and not found.wrapped:
        missing.append(f"a ring that wraps after {window_tokens:,} tokens: {give}")
    if len(found.beside_blocks) < 2:
        missing.append(f"one stream beside short and long neighbours: {give} twice")
    if found.places < 2:
        missing.append("one stream in two places: give two sessions that hold it")
    if found.cuts < 2:
        missing.append("one prompt cut in two ways: give a budget of several chunks")
    if not found.block_ends:
        missing.append(f"a grant that ends with a block: {give}, and chunks that divide a block")
    if found.longest_moved <= block_tokens:
        missing.append("a move of more than a block: give sessions of several sizes above that")
    return missing


def _most(sets: Mapping[int, set]) -> int:
    return max(map(len, sets.values()), default=0)


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
