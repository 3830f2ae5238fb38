"""Memory of a serving configuration: transients and terms, by hand at the edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qwisp.errors import BadInput
from qwisp.memory.calibration import load_calibration, load_residency
from qwisp.memory.dialect import Dialect
from qwisp.memory.dialect_fieldfare import Fieldfare
from qwisp.memory.dialect_llama_cpp import LlamaCpp
from qwisp.memory.dialect_mlx_lm import MlxLm
from qwisp.memory.dialect_qwisp import Qwisp
from qwisp.memory.dialect_sglang import Sglang
from qwisp.memory.dialect_vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.resident import expert_residency, peak_metal, resident, weights_of
from qwisp.memory.serving import Serving, kv_term, serving_memory
from qwisp.memory.side_budgets import SideBudgets
from qwisp.memory.transient import transient_bytes, widest_chunk
from qwisp.memory.weights import Weights
from qwisp.spec.catalog import load_model
from qwisp.spec.layers import FullAttention, Mla, PooledAttention, SlidingWindow
from qwisp.spec.machine import MachineSpec, load_machine
from qwisp.spec.model import ModelSpec
from qwisp.units import MIB

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


# ---- prefill transient -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "fused"), [(32, False), (64, True), (80, True), (96, False), (128, True), (256, False)]
)
def test_heads_of_64_80_and_128_have_a_fused_kernel(head, fused):
    model = spec(FullAttention(kv_heads=1, k_dim=head, v_dim=64))
    # 100 rows of 2 x (512 + 8 x 16) bytes.
    assert transient_bytes(model, 100, 16) == (0 if fused else 100 * 1280)


def test_the_layer_that_keeps_the_most_rows_sets_the_peak():
    full = FullAttention(kv_heads=1, k_dim=256, v_dim=256)
    ring = SlidingWindow(kv_heads=1, k_dim=256, v_dim=256, window_tokens=1000)
    row = 2 * (512 + 8 * 256)
    for layers in ((full, ring), (ring, full)):
        assert transient_bytes(spec(*layers), 5000, 256) == 5000 * row
    assert transient_bytes(spec(ring), 5000, 256) == 1256 * row
    assert transient_bytes(spec(ring), 1255, 256) == 1255 * row
    assert transient_bytes(spec(ring), 5000, 256, dialect=Qwisp(chunk_tokens=64)) == 1064 * row
    assert transient_bytes(spec(ring), 5000, 256, dialect=Fieldfare(chunked=False)) == 5000 * row
    fused = FullAttention(kv_heads=1, k_dim=64, v_dim=64)
    assert transient_bytes(spec(fused, ring), 5000, 256) == 1256 * row


def test_one_token_at_a_time_writes_no_scores_out():
    assert transient_bytes(UNFUSED, 5000, 1) == 0
    assert transient_bytes(UNFUSED, 5000, 2) == 5000 * 2 * (512 + 8 * 2)


@pytest.mark.parametrize("lost", [{"hidden": None}, {"query_heads": None}])
def test_unknown_sizes_matter_only_where_there_is_a_peak(lost):
    assert transient_bytes(replace(UNFUSED, **lost), 5000, 256) is None
    assert widest_chunk(replace(UNFUSED, **lost), 5000, 2**40) is None
    assert transient_bytes(replace(PLAIN, **lost), 5000, 256) == 0


@pytest.mark.parametrize(("tokens", "elements"), [(1000, 1000 * 192), (500, 128 * 1024)])
def test_a_quantised_cache_adds_the_largest_layers_rows_in_half_precision(tokens, elements):
    narrow = FullAttention(kv_heads=2, k_dim=64, v_dim=32)  # 192 elements a row
    wide = SlidingWindow(kv_heads=4, k_dim=128, v_dim=128, window_tokens=100)  # 1,024
    found = transient_bytes(spec(narrow, wide), tokens, 28, is_quantised=True)
    assert found == tokens * 2 * (512 + 8 * 28) + 2 * elements


@pytest.mark.parametrize(
    ("layer", "elements"),
    [
        (Mla(kv_lora_rank=512, rope_dim=64), 576),
        (PooledAttention(row_elements=1152, pooled_elements=128, pool_tokens=4), 1152),
    ],
)
def test_latent_and_pooled_rows_are_never_fused(layer, elements):
    scores = 1000 * 2 * (512 + 8 * 64)
    assert transient_bytes(spec(layer), 1000, 64) == scores
    assert transient_bytes(spec(layer), 1000, 64, is_quantised=True) == scores + 2000 * elements


@pytest.mark.parametrize(
    ("tokens", "free", "chunk"),
    [
        (4096, 4096 * 2 * (512 + 8 * 512), 512),  # just fits
        (4096, 4096 * 2 * (512 + 8 * 512) - 1, 256),
        (4096, 2**40, 4096),
        (4095, 2**40, 2048),  # no chunk is longer than the context
        (64, 2**40, 64),
        (63, 2**40, None),
        (4096, 4096 * 2 * (512 + 8 * 64) - 1, None),
    ],
)
def test_the_widest_chunk_is_the_first_whose_peak_fits(tokens, free, chunk):
    found = widest_chunk(UNFUSED, tokens, free)
    assert (found and found.chunk_tokens) == chunk
    if found:
        assert found.transient_bytes == tokens * 2 * (512 + 8 * chunk)


# ---- terms -------------------------------------------------------------------------------------


def test_a_lane_costs_a_cache_whether_the_engine_counts_sequences_or_not():
    one = 4096 * 2048
    for dialect in (Qwisp(), LlamaCpp(n_seq=3), MlxLm(n_seq=3), Vllm(n_seq=3), Sglang(n_seq=3)):
        serving = Serving(model=PLAIN, dialect=dialect, lanes=3)
        assert kv_term(serving, 4096).num_bytes == 3 * one
    assert kv_term(Serving(model=PLAIN), 4096).num_bytes == one
    shared = LlamaCpp(n_seq=3, unified=True)  # one context for all slots
    assert kv_term(Serving(model=PLAIN, dialect=shared, lanes=3), 4096).num_bytes == one
    assert kv_term(Serving(model=PLAIN, lanes=3), 4096).note.startswith("3 lanes x ")
    note = kv_term(Serving(model=PLAIN, dialect=MlxLm(n_seq=3), lanes=3), 4096).note
    assert note == "3 sequences of 4K"
    assert kv_term(Serving(model=PLAIN, dialect=MlxLm()), 4096).note == "at 4K"


def test_without_chunks_prompts_pass_through_the_decode_path():
    ring = spec(SlidingWindow(kv_heads=1, k_dim=256, v_dim=256, window_tokens=100))
    whole = Serving(model=ring, chunked=False, weights_bytes=0)
    assert (whole.chunk_tokens, Serving(model=ring).chunk_tokens) == (1, 256)
    assert serving_memory(whole, 4096).known_bytes == OVERHEAD + 4096 * 1024
    chunked = serving_memory(Serving(model=ring, weights_bytes=0), 4096)
    assert chunked["cache"] == 356 * 1024
    assert chunked["prefill transient"] == 356 * 2 * (512 + 8 * 256)


@pytest.mark.parametrize(("size", "share"), [(9, 3), (10, 4), (11, 4), (12, 4), (0, 0)])
def test_a_rank_holds_its_share_of_the_weights_rounded_up(size, share):
    for dialect in (Vllm(tensor_parallel=3), Sglang(tensor_parallel=3)):
        model = spec(FullAttention(kv_heads=3, k_dim=64, v_dim=64))
        given = serving_memory(Serving(model=model, dialect=dialect, weights_bytes=size), 16)
        assert given["weights"] == share
        assert given.terms[0].note == "as given, one of 3 shares"
        held = Weights(file_bytes=size, is_own=True, source="folder")
        own = serving_memory(Serving(model=model, dialect=dialect, weights=held), 16).terms[0]
        assert (own.num_bytes, own.provenance) == (share, "exact")
        assert own.note == "folder, one of 3 shares"


def test_weights_are_given_own_published_or_unmeasured():
    pack = Weights(file_bytes=7, source="somewhere")
    cases = {
        ("exact", 5): Serving(model=PLAIN, weights_bytes=5, weights=pack),
        ("borrowed", 7): Serving(model=PLAIN, weights=pack),
        ("exact", 7): Serving(model=PLAIN, weights=replace(pack, is_own=True)),
        ("unmeasured", None): Serving(model=PLAIN),
        ("exact", 0): Serving(model=PLAIN, weights_bytes=0),
    }
    for expected, serving in cases.items():
        term = serving_memory(serving, 16).terms[0]
        assert (term.provenance, term.num_bytes) == expected
        assert "share" not in term.note


def test_the_overhead_is_this_engines_a_cuda_contexts_or_unmeasured():
    def overhead(dialect: Dialect, machine: MachineSpec | None) -> tuple[int | None, str]:
        serving = Serving(model=PLAIN, dialect=dialect, weights_bytes=0, machine=machine)
        term = serving_memory(serving, 16).terms[1]
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
        memory = serving_memory(Serving(model=UNFUSED, dialect=dialect, weights_bytes=0), 4096)
        assert memory["prefill transient"] == 4096 * 2 * (512 + 8 * chunk)
        assert memory.terms[-1].provenance == "borrowed"
    for dialect in (LlamaCpp(), Vllm(), Sglang(), Fieldfare()):
        memory = serving_memory(Serving(model=UNFUSED, dialect=dialect, weights_bytes=0), 4096)
        assert [term.name for term in memory.terms] == ["weights", "runtime overhead", "cache"]
    plain = serving_memory(Serving(model=PLAIN, weights_bytes=0), 4096)
    assert [term.name for term in plain.terms] == ["weights", "runtime overhead", "cache"]


def test_streamed_experts_are_counted_by_slot_and_prompts_by_token():
    """16 slots x 30 layers x 3,358,720 bytes; 245 bytes a token of the prompt; 1,505 MiB at 64K."""

    def terms(**given: object) -> dict[str, int | None]:
        serving = Serving(model=GEMMA, dialect=Fieldfare(), machine=M5, **given)
        return {term.name: term.num_bytes for term in serving_memory(serving, 65536).terms}

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
    assert "weights" in terms(weights_bytes=5), "given weights are held, not streamed"


def test_side_budgets_of_an_engine_that_counts_its_sequences_are_those_of_each():
    side = SideBudgets(prompt_cache_blobs=1, prompt_cache_tokens=10, checkpoints_per_slot=1)
    state = 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    for dialect in (Qwisp(), MlxLm(n_seq=3), Vllm(n_seq=3)):
        memory = serving_memory(Serving(model=QWEN, dialect=dialect, lanes=3, side=side), 4096)
        if not isinstance(dialect, Vllm):  # whose states lie in pages
            assert memory["checkpoints"] == 3 * state
            assert memory["prompt cache"] == state + 10 * 20480
    drafts = SideBudgets(draft_copies=2)
    head = cache_bytes(QWEN, 4096, draft=True).total_bytes - cache_bytes(QWEN, 4096).total_bytes
    for dialect in (Qwisp(), MlxLm(n_seq=3)):
        memory = serving_memory(Serving(model=QWEN, dialect=dialect, lanes=3, side=drafts), 4096)
        assert memory["draft copies"] == 3 * (2 * state + head)
    assert [t.name for t in serving_memory(Serving(model=QWEN), 4096).terms][-1] != "draft copies"


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
