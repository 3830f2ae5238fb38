"""Breaking any one rule of a dialect makes rows miss: no rule is there for show."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwisp.memory import row_types
from qwisp.memory.dialect import CacheRows, Dialect
from qwisp.memory.engines import mlx_lm
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.reconcile import read_truth, reconcile

OWN_ROWS = Path(__file__).parents[1] / "data" / "allocator_rows.json"

SHORT_F16 = {**row_types._BLOCKS, "f16": (1, 1)}


def blocks_without_scales(name, size):
    return {**row_types._BLOCKS, name: (32, size)}


MUTATIONS = {
    "llama.cpp does not pad contexts": (LlamaCpp, "stream_cells", lambda s, c: c // s.streams),
    "llama.cpp gives every slot the whole context": (LlamaCpp, "stream_cells", lambda s, c: c),
    "llama.cpp counts one stream only": (LlamaCpp, "full_rows", lambda s, c: s.stream_cells(c)),
    "llama.cpp never shares a stream": (LlamaCpp, "streams", property(lambda s: s.n_seq)),
    "llama.cpp forgets the micro-batch": (
        LlamaCpp,
        "window_cells",
        lambda s, c, w: s.stream_cells(c) if s.swa_full else min(s.stream_cells(c), w),
    ),
    "llama.cpp forgets the window's pad": (
        LlamaCpp,
        "window_cells",
        lambda s, c, w: (
            s.stream_cells(c)
            if s.swa_full
            else min(s.stream_cells(c), w * (s.n_seq // s.streams) + s.ubatch_tokens)
        ),
    ),
    "llama.cpp always pads windows to 256": (
        LlamaCpp,
        "window_cells",
        lambda s, c, w: (
            s.stream_cells(c)
            if s.swa_full
            else min(
                s.stream_cells(c),
                -(-(w * (s.n_seq // s.streams) + s.ubatch_tokens) // 256) * 256,
            )
        ),
    ),
    "llama.cpp keeps one window in a shared stream": (
        LlamaCpp,
        "window_cells",
        lambda s, c, w: (
            s.stream_cells(c)
            if s.swa_full
            else min(s.stream_cells(c), -(-(w + s.ubatch_tokens) // s.pad_cells) * s.pad_cells)
        ),
    ),
    "llama.cpp lets windows outgrow the context": (
        LlamaCpp,
        "window_cells",
        lambda s, c, w: (
            s.stream_cells(c)
            if s.swa_full
            else -(-(w * (s.n_seq // s.streams) + s.ubatch_tokens) // s.pad_cells) * s.pad_cells
        ),
    ),
    "llama.cpp ignores swa_full": (
        LlamaCpp,
        "window_cells",
        lambda s, c, w: min(
            s.stream_cells(c),
            -(-(w * (s.n_seq // s.streams) + s.ubatch_tokens) // s.pad_cells) * s.pad_cells,
        ),
    ),
    "llama.cpp does not widen values without flash attention": (
        LlamaCpp,
        "_widened",
        lambda s, layer, caches, c, spec: s.layer_terms(layer, c, spec),
    ),
    "llama.cpp keeps no draft copies": (LlamaCpp, "states", lambda s: s.n_seq),
    "llama.cpp keeps one state for all slots": (
        LlamaCpp,
        "states",
        lambda s: 1 + s.draft_copies,
    ),
    "llama.cpp keeps convolution tails in 16 bits": (
        LlamaCpp,
        "conv_element_bytes",
        lambda s, spec: 2,
    ),
    "states are kept in 16 bits": (Dialect, "state_element_bytes", lambda s, spec: 2),
    "llama.cpp always has the latent form": (LlamaCpp, "mla_rows", Dialect.mla_rows),
    "latent rows forget the rotary key": (
        Dialect,
        "mla_rows",
        lambda s, layer, spec: CacheRows(s.key_bytes(layer.kv_lora_rank, spec), 0),
    ),
    "mlx-lm caches grow row by row": (MlxLm, "full_rows", lambda s, c: c),
    "mlx-lm caches grow to whole steps": (MlxLm, "full_rows", lambda s, c: -(-c // 256) * 256),
    "mlx-lm rings hold the window only": (MlxLm, "ring_rows", lambda s, c, w: min(c, w)),
    "mlx-lm rings hold the window and a chunk": (
        MlxLm,
        "ring_rows",
        lambda s, c, w: min(c, w + s.chunk_tokens),
    ),
    "vllm's ranks hold all heads": (Vllm, "rows", Dialect.rows),
    "sglang's ranks hold all heads": (Sglang, "rows", Dialect.rows),
    "vllm ignores its pool": (Vllm, "full_rows", lambda s, c: c),
    "sglang ignores its pool": (Sglang, "full_rows", lambda s, c: c),
    "vllm gives a hybrid's state no pages": (Vllm, "terms", Dialect.terms),
    "elements of f16 have one byte": (row_types, "_BLOCKS", SHORT_F16),
    "q8_0 has no scales": (row_types, "_BLOCKS", blocks_without_scales("q8_0", 32)),
    "q5_1 has no minimum": (row_types, "_BLOCKS", blocks_without_scales("q5_1", 22)),
    "q5_0 has no scales": (row_types, "_BLOCKS", blocks_without_scales("q5_0", 20)),
    "q4_1 has no minimum": (row_types, "_BLOCKS", blocks_without_scales("q4_1", 18)),
    "q4_0 has no scales": (row_types, "_BLOCKS", blocks_without_scales("q4_0", 16)),
    "steps have 128 rows": (mlx_lm, "STEP_ROWS", 128),
}


@pytest.fixture(scope="module")
def rows(request):
    """The published rows, where they are there, and the hand-computed ones."""
    truth = request.getfixturevalue("truth_dir") / "allocator_truth.json"
    return [*read_truth(truth), *read_truth(OWN_ROWS)]


def missed(rows):
    return [result.id for result in reconcile(rows) if result.verdict == "missed"]


@pytest.mark.truth
def test_unbroken_rules_reproduce_every_row(rows):
    assert {result.verdict for result in reconcile(rows)} == {"reproduced"}


@pytest.mark.truth
@pytest.mark.parametrize("rule", MUTATIONS)
def test_a_broken_rule_misses(monkeypatch, rows, rule):
    owner, name, broken = MUTATIONS[rule]
    monkeypatch.setattr(owner, name, broken)
    assert missed(rows)
