"""The lines engines print: as they were seen in public logs, from geometry."""

from __future__ import annotations

from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.spec.catalog import load_model
from qwisp.spec.model import ModelSpec
from qwisp.units import GIB


def grouped(layers: int, kv_heads: int, head_dim: int) -> ModelSpec:
    return ModelSpec.from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": 131072,
        },
        name="grouped",
    )


def test_llama_cpp_prints_cells_layers_and_sequences():
    dialect = LlamaCpp(n_seq=4, unified=True)
    assert dialect.log_lines(grouped(8, 4, 256), 135168) == (
        "llama_kv_cache: size = 4224.00 MiB (135168 cells,   8 layers,  4/1 seqs),"
        " K (f16): 2112.00 MiB, V (f16): 2112.00 MiB",
    )


def test_llama_cpp_cells_are_per_sequence_when_slots_do_not_share():
    line = LlamaCpp(n_seq=2).log_lines(grouped(26, 8, 128), 8192)[0]
    assert "size =  832.00 MiB (  4096 cells,  26 layers,  2/2 seqs)" in line


def test_llama_cpp_prints_windows_and_states_on_their_own_lines():
    full, window = LlamaCpp().log_lines(load_model("gemma-4-26b-a4b"), 32768)
    assert "( 32768 cells,   5 layers,  1/1 seqs)" in full
    assert "(  1536 cells,  25 layers,  1/1 seqs)" in window
    state = LlamaCpp(n_seq=4).log_lines(load_model("qwen3.6-35b-a3b"), 4096)[1]
    assert state == (
        "llama_memory_recurrent: size =  251.25 MiB (     4 cells,  40 layers,  4 seqs  0 rs_seq),"
        " R (f32):   11.25 MiB, S (f32):  240.00 MiB"
    )


def test_vllm_prints_tokens_and_concurrency_of_its_pool():
    model = grouped(32, 8, 128)
    assert Vllm().log_lines(model, 20000, 1952 * 16 * 131072) == (
        "GPU KV cache size: 31,232 tokens",
        "Maximum concurrency for 20,000 tokens per request: 1.56x",
    )
    assert Vllm().log_lines(model, 20000) == ()
    assert Vllm().log_lines(model, 20000, -5) == ()


def test_a_hybrid_pool_holds_other_contexts_than_its_printed_tokens_say():
    model = load_model("qwen3.6-35b-a3b")
    pool = Vllm().pool_of(model, 32768, 4 * GIB)
    assert pool.contexts != pool.tokens / 32768
    pages = Vllm().pages(model.caches, model)
    used = int(pool.contexts) * pages.of_sequence(32768) * pages.bytes_each
    assert used <= 4 * GIB < used + pages.of_sequence(32768) * pages.bytes_each


def test_sglang_prints_gib_as_gb():
    model = grouped(94, 4, 128)
    pool = 367404 * 94 * 2 * 128 * 2
    line = Sglang(tensor_parallel=4).log_lines(model, 4096, pool)[0]
    assert line == "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB"


def test_mlx_lm_prints_decimal_gigabytes():
    model = load_model("qwen3.6-35b-a3b")
    size = cache_bytes(model, 32768, MlxLm()).total_bytes
    assert MlxLm().log_lines(model, 32768) == (f"Prompt Cache: 1 sequences, {size / 1e9:.2f} GB",)
    assert Fieldfare().log_lines(model, 32768) == ()
