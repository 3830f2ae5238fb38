"""Memory of a serving configuration: terms, transients, ladders and cells, by hand at the edges."""

from __future__ import annotations

from dataclasses import replace
from math import nextafter
from pathlib import Path
from types import SimpleNamespace

import pytest

from qwisp.cost import load_cost
from qwisp.errors import BadInput
from qwisp.memory.admission import ContextAdmission
from qwisp.memory.calibration import load_calibration, load_residency
from qwisp.memory.dialect import Dialect
from qwisp.memory.engines.fieldfare import (
    Fieldfare,
    expert_residency,
    peak_metal,
    resident,
    weights_of,
)
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.fit import fit
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.side_budgets import SideBudgets
from qwisp.memory.weights import Weights
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.layers import FullAttention, SlidingWindow
from qwisp.spec.machine import MachineSpec
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB, MIB

CONFIGS = Path(__file__).parents[1] / "data/configs"
GEMMA = load_model("gemma-4-26b-a4b")
QWEN = load_model("qwen3.6-35b-a3b")
M1, M5 = load_machine("m1-max-64gb"), load_machine("m5-max-36gb")
# Process and Metal scratch as data/calibration/memory-fieldfare.json has them.
OVERHEAD = 370_668_186 + 33_554_432


def spec(*layers: object, hidden: int | None = 512, query_heads: int | None = 8) -> ModelSpec:
    return ModelSpec(
        name="by hand",
        family="geometry",
        layers=tuple(layers),
        hidden=hidden,
        query_heads=query_heads,
        context_max_tokens=262144,
    )


# 2,048 bytes a token, heads of 64: nothing is written out beside the cache.
PLAIN = spec(*[FullAttention(kv_heads=2, k_dim=64, v_dim=64)] * 4)
# 1,024 bytes a token, heads of 256: 2 x (512 + 8 x chunk) bytes of scores and inputs a token.
UNFUSED = spec(FullAttention(kv_heads=1, k_dim=256, v_dim=256))


def box(left_bytes: int, **changes: object) -> MachineSpec:
    """A machine with so many bytes beside this engine's overhead."""
    given = {"name": "box", "title": "box", "memory_bytes": 2**40, "limit_name": "box"}
    return MachineSpec(**given | {"limit_bytes": OVERHEAD + left_bytes} | changes)


def test_a_lane_costs_a_cache_whether_the_engine_counts_sequences_or_not():
    one = 4096 * 2048
    for dialect in (Qwisp(), LlamaCpp(n_seq=3), MlxLm(n_seq=3), Vllm(n_seq=3), Sglang(n_seq=3)):
        serving = ContextAdmission(PLAIN, dialect=dialect, lanes=3)
        assert serving.cache(4096).num_bytes == 3 * one
    assert ContextAdmission(PLAIN).cache(4096).num_bytes == one
    shared = LlamaCpp(n_seq=3, unified=True)  # one context for all slots
    assert ContextAdmission(PLAIN, dialect=shared, lanes=3).cache(4096).num_bytes == one
    assert ContextAdmission(PLAIN, lanes=3).cache(4096).note.startswith("3 lanes x ")
    note = ContextAdmission(PLAIN, dialect=MlxLm(n_seq=3), lanes=3).cache(4096).note
    assert note == "3 sequences of 4K"
    assert ContextAdmission(PLAIN, dialect=MlxLm()).cache(4096).note == "at 4K"


def test_without_chunks_prompts_pass_through_the_decode_path():
    ring = spec(SlidingWindow(kv_heads=1, k_dim=256, v_dim=256, window_tokens=100))
    whole = ContextAdmission(ring, prefill="unchunked", weights=0)
    assert (whole.chunk_tokens, ContextAdmission(ring).chunk_tokens) == (1, 256)
    assert whole.memory(4096).known_bytes == OVERHEAD + 4096 * 1024
    chunked = ContextAdmission(ring, weights=0).memory(4096)
    assert chunked["cache"] == 356 * 1024
    assert chunked["prefill transient"] == 356 * 2 * (512 + 8 * 256)


@pytest.mark.parametrize(("size", "share"), [(9, 3), (10, 4), (11, 4), (12, 4), (0, 0)])
def test_a_rank_holds_its_share_of_the_weights_rounded_up(size, share):
    for dialect in (Vllm(tensor_parallel=3), Sglang(tensor_parallel=3)):
        model = spec(FullAttention(kv_heads=3, k_dim=64, v_dim=64))
        given = ContextAdmission(model, dialect=dialect, weights=size).memory(16)
        assert given["weights"] == share
        assert given.terms[0].note == "as given, one of 3 shares"
        held = Weights(file_bytes=size, is_own=True, source="folder")
        own = ContextAdmission(model, dialect=dialect, weights=held).memory(16).terms[0]
        assert (own.num_bytes, own.provenance) == (share, "exact")
        assert own.note == "folder, one of 3 shares"


def test_weights_are_given_own_published_or_unmeasured():
    pack = Weights(file_bytes=7, source="somewhere")
    cases = {
        ("exact", 5): ContextAdmission(PLAIN, weights=5),
        ("borrowed", 7): ContextAdmission(PLAIN, weights=pack),
        ("exact", 7): ContextAdmission(PLAIN, weights=replace(pack, is_own=True)),
        ("unmeasured", None): ContextAdmission(PLAIN),
        ("exact", 0): ContextAdmission(PLAIN, weights=0),
    }
    for expected, serving in cases.items():
        term = serving.memory(16).terms[0]
        assert (term.provenance, term.num_bytes) == expected
        assert "share" not in term.note


def test_the_overhead_is_this_engines_a_cuda_contexts_or_unmeasured():
    def overhead(dialect: Dialect, machine: MachineSpec | None) -> tuple[int | None, str]:
        serving = ContextAdmission(PLAIN, dialect=dialect, weights=0, machine=machine)
        term = serving.memory(16).terms[1]
        assert term.name == "runtime overhead"
        return term.num_bytes, term.provenance

    assert overhead(Qwisp(), None) == (OVERHEAD, "borrowed")
    assert overhead(Qwisp(), M1) == (OVERHEAD, "borrowed")
    assert overhead(Qwisp(), load_machine("h200-141gb")) == (543_162_368, "measured here")
    assert overhead(Qwisp(), box(1, memory_kind="vram")) == (543_162_368, "borrowed")
    for other in (MlxLm(), LlamaCpp(), Vllm(), Fieldfare()):
        assert overhead(other, load_machine("h200-141gb")) == (None, "unmeasured")


def test_only_engines_whose_kernels_are_known_have_a_transient():
    for dialect, chunk in ((Qwisp(), 256), (MlxLm(), 2048)):
        memory = ContextAdmission(UNFUSED, dialect=dialect, weights=0).memory(4096)
        assert memory["prefill transient"] == 4096 * 2 * (512 + 8 * chunk)
        assert memory.terms[-1].provenance == "borrowed"
    for dialect in (LlamaCpp(), Vllm(), Sglang(), Fieldfare()):
        memory = ContextAdmission(UNFUSED, dialect=dialect, weights=0).memory(4096)
        assert [term.name for term in memory.terms] == ["weights", "runtime overhead", "cache"]
    plain = ContextAdmission(PLAIN, weights=0).memory(4096)
    assert [term.name for term in plain.terms] == ["weights", "runtime overhead", "cache"]


def test_streamed_experts_are_counted_by_slot_and_prompts_by_token():
    """16 slots x 30 layers x 3,358,720 bytes; 245 bytes a token of the prompt; 1,505 MiB at 64K."""

    def terms(**given: object) -> dict[str, int | None]:
        serving = ContextAdmission(GEMMA, dialect=Fieldfare(), machine=M5, **given)
        return {term.name: term.num_bytes for term in serving.memory(65536).terms}

    assert terms(prompt_tokens=1000, lanes=2) == {
        "common weights": 1_385_973_080,
        "expert slots": 1_612_185_600,
        "process": 370_668_186,
        "metal scratch": 33_554_432,
        "prompt": 245_000,
        "cache": 2 * 1505 * MIB,
    }
    assert terms()["prompt"] == 245 * 65536
    assert terms(prompt_tokens=0)["prompt"] == 0
    assert terms(slots_per_layer=3)["expert slots"] == 3 * 30 * 3_358_720
    assert "weights" in terms(weights=5), "given weights are held, not streamed"


def test_side_budgets_of_an_engine_that_counts_its_sequences_are_those_of_each():
    side = SideBudgets(prompt_cache_blobs=1, prompt_cache_tokens=10, checkpoints_per_slot=1)
    state = 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    for dialect in (Qwisp(), MlxLm(n_seq=3), Vllm(n_seq=3)):
        memory = ContextAdmission(QWEN, dialect=dialect, lanes=3, side=side).memory(4096)
        if not isinstance(dialect, Vllm):  # whose states lie in pages
            assert memory["checkpoints"] == 3 * state
            assert memory["prompt cache"] == state + 10 * 20480
    drafts = SideBudgets(draft_copies=2)
    head = cache_bytes(QWEN, 4096, draft=True).total_bytes - cache_bytes(QWEN, 4096).total_bytes
    for dialect in (Qwisp(), MlxLm(n_seq=3)):
        memory = ContextAdmission(QWEN, dialect=dialect, lanes=3, side=drafts).memory(4096)
        assert memory["draft copies"] == 3 * (2 * state + head)
    assert [t.name for t in ContextAdmission(QWEN).memory(4096).terms][-1] != "draft copies"


def test_the_resident_projection_is_its_terms():
    calibration = load_calibration()
    found = resident(GEMMA, 4096, 14, calibration, machine=M5.name)
    slots, prompt = 16 * 30 * 3_358_720, 14 * 245
    assert found.known_bytes == slots + OVERHEAD + prompt + 305 * MIB
    assert peak_metal(GEMMA, 4096, calibration).known_bytes == (305 + 32) * MIB
    own = replace(calibration.constants, metal_scratch_bytes=5)
    assert peak_metal(GEMMA, 4096, calibration, own).known_bytes == 305 * MIB + 5
    assert resident(GEMMA, 4096, 14, calibration, constants=own)["metal scratch"] == 5
    other = replace(weights_of(GEMMA), expert_layers=1, expert_stride_bytes=10)
    assert resident(GEMMA, 4096, 0, calibration, weights=other)["expert slots"] == 160
    sweep = load_residency()
    assert expert_residency(sweep, 2, 0).known_bytes == 2 * 40 * 1_769_472
    assert expert_residency(sweep, 2).known_bytes == 2_380_606_720 + 2 * 40 * 1_769_472
    with pytest.raises(BadInput, match="not measured"):
        weights_of(PLAIN)


def test_a_rung_that_takes_all_the_patience_is_still_recommended():
    """On this calibration 32K take 195.56 s and 64K take 639.96 s."""
    rule, cost = ContextAdmission(QWEN, M1), load_cost(QWEN.name, M1.name)
    seconds = {rung.context_tokens: rung.prefill_s for rung in fit(rule, cost=cost).rungs}
    assert (round(seconds[32768], 2), round(seconds[65536], 2)) == (195.56, 639.96)
    exact = fit(rule, cost=cost, patience_s=seconds[32768]).recommended
    assert exact.context_tokens == 32768
    assert fit(rule, cost=cost, patience_s=nextafter(seconds[32768], 0)).recommended[0] == 16384
    usual = fit(rule, cost=cost).recommended
    assert usual.context_tokens == 32768
    assert "read in 196 s; the next rung takes 640 s, above 300: time is" in usual.why
    least = fit(rule, cost=cost, patience_s=1).recommended
    assert (least.context_tokens, "longer than 1 s" in least.why) == (4096, True)
    most = fit(rule, cost=cost, patience_s=1e9).recommended
    assert (most.context_tokens, "the largest rung that fits" in most.why) == (262144, True)


def test_what_memory_leaves_is_recommended_only_below_the_rungs_or_with_times():
    below = fit(ContextAdmission(PLAIN, box(1000 * 2048), weights=0))
    assert below.recommended == (1000, "the largest that fits, below every rung")
    assert (below.context_tokens, below.largest_tokens, below.refusal) == (1000, 1000, None)
    none = fit(ContextAdmission(PLAIN, box(2047), weights=0))
    assert none.recommended == (None, "no context fits")
    assert (none.context_tokens, none.largest_tokens) == (4096, None)
    assert none.refusal is not None
    untimed = fit(ContextAdmission(PLAIN, box(5000 * 2048), weights=0))
    assert (untimed.recommended.context_tokens, untimed.context_tokens) == (None, 5000)
    asked = fit(ContextAdmission(PLAIN, box(5000 * 2048), weights=0), 7)
    assert asked.context_tokens == 7
    assert asked.usable_bytes == OVERHEAD + 5000 * 2048
    assert fit(ContextAdmission(PLAIN, weights=0)).usable_bytes is None


def test_a_calibration_without_prefill_times_no_rung():
    decode_only = SimpleNamespace(name="decode only", has_prefill=False)
    found = fit(ContextAdmission(PLAIN, box(8192 * 2048), weights=0), cost=decode_only)
    assert {rung.prefill_s for rung in found.rungs} == {None}
    assert (found.recommended.context_tokens, found.cost_name) == (None, "decode only")
    assert fit(ContextAdmission(PLAIN, weights=0)).cost_name is None


def test_every_rung_has_its_cache_and_its_need():
    found = fit(ContextAdmission(PLAIN, box(3 * 8192 * 2048), weights=0, lanes=3))
    rungs = {rung.context_tokens: rung for rung in found.rungs}
    assert rungs[8192].cache_bytes == 3 * 8192 * 2048
    assert rungs[8192].needs_bytes == OVERHEAD + 3 * 8192 * 2048
    assert [rung.fits for rung in found.rungs] == [True] * 2 + [False] * 7
    assert (rungs[8192].broken_rule, rungs[16384].broken_rule) == (None, "machine memory")
    assert all(rung.prefill_s is None for rung in found.rungs)


def test_a_fit_is_decided_unless_it_fits_without_known_weights():
    unknown = ContextAdmission(PLAIN, box(8192 * 2048))
    assert not fit(unknown, 8192).is_decided
    assert fit(unknown, 8193).is_decided
    assert fit(replace(unknown, weights=0), 8192).is_decided
    assert fit(replace(unknown, weights=0, dialect=MlxLm()), 4096).is_decided


@pytest.mark.parametrize(("left", "chunk"), [(0, 512), (-1, 256)])
def test_the_planned_chunk_is_the_widest_beside_everything_else(left, chunk):
    cache, peak = 4096 * 1024, 4096 * 2 * (512 + 8 * 512)
    rule = ContextAdmission(UNFUSED, box(7 + cache + peak + left), weights=7)
    assert fit(rule, 4096).chunk.chunk_tokens == chunk
    assert fit(replace(rule, machine=None), 4096).chunk is None
    assert fit(replace(rule, prefill="unchunked"), 4096).chunk is None
    assert fit(rule, 262144).chunk is None, "it is refused"
    for dialect in (Fieldfare(), Vllm(), Sglang(), LlamaCpp()):
        assert fit(replace(rule, dialect=dialect), 4096).chunk is None
    small = fit(replace(rule, dialect=MlxLm(chunk_tokens=64)), 4096).chunk
    assert small.chunk_tokens >= chunk, "its overhead is not known and not counted"


def test_a_pool_is_what_the_weights_leave():
    device = box(0, memory_kind="vram", limit_bytes=GIB + 1000 * 2048)
    vllm = fit(ContextAdmission(PLAIN, device, weights=GIB, dialect=Vllm()), 496)
    assert vllm.log_lines == (
        "GPU KV cache size: 992 tokens",  # 62 whole blocks of 16
        "Maximum concurrency for 496 tokens per request: 2.00x",
    )
    assert fit(ContextAdmission(PLAIN, None, weights=GIB, dialect=Vllm()), 496).log_lines == ()
    assert fit(ContextAdmission(PLAIN, device, dialect=Vllm()), 496).log_lines == ()
    lanes = ContextAdmission(PLAIN, device, weights=0, dialect=LlamaCpp(n_seq=2), lanes=2)
    assert "(   512 cells,   4 layers,  2/2 seqs)" in fit(lanes, 512).log_lines[0]
