"""Laws that hold for every model and context, checked on random ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwisp.memory.dialect import Dialect, add_terms
from qwisp.memory.engines.fieldfare import Fieldfare
from qwisp.memory.engines.llama_cpp import LlamaCpp
from qwisp.memory.engines.mlx_lm import MlxLm
from qwisp.memory.engines.qwisp import Qwisp
from qwisp.memory.engines.sglang import Sglang
from qwisp.memory.engines.vllm import Vllm
from qwisp.memory.footprint import cache_bytes
from qwisp.memory.session_bytes import SessionBytes
from qwisp.spec.layers import (
    FullAttention,
    GatedDelta,
    Mamba1,
    Mamba2,
    Mla,
    Parallel,
    PooledAttention,
    Shared,
    ShortConv,
    SlidingWindow,
    Stateless,
)
from qwisp.spec.model import ModelSpec

size = st.integers(1, 300)
kernel = st.integers(1, 6)
attention = st.one_of(
    st.builds(FullAttention, kv_heads=size, k_dim=size, v_dim=size),
    st.builds(SlidingWindow, kv_heads=size, k_dim=size, v_dim=size, window_tokens=size),
    st.builds(Mla, kv_lora_rank=size, rope_dim=size, heads=size, nope_dim=size, v_dim=size),
    st.builds(PooledAttention, row_elements=size, pooled_elements=size, pool_tokens=size),
)
recurrent = st.one_of(
    st.builds(
        GatedDelta,
        value_heads=size,
        key_heads=size,
        value_dim=size,
        key_dim=size,
        conv_kernel=kernel,
    ),
    st.builds(
        Mamba2,
        heads=size,
        head_dim=size,
        state_dim=size,
        groups=size,
        conv_kernel=kernel,
        inner_dim=size,
    ),
    st.builds(Mamba1, inner_dim=size, state_dim=size, conv_kernel=kernel),
    st.builds(ShortConv, hidden=size, kernel=kernel),
)
layer = st.one_of(
    attention,
    recurrent,
    st.just(Shared(source=0)),
    st.just(Stateless()),
    st.builds(Parallel, parts=st.tuples(attention, recurrent)),
)
layers = st.lists(layer, min_size=1, max_size=6).map(tuple)
context = st.integers(1, 300_000)


def spec_of(many):
    return ModelSpec(name="random", family="geometry", layers=many)


SMOOTH = [
    *(Dialect(), Qwisp(), Qwisp(chunk_tokens=64), Fieldfare(), Fieldfare(chunked=False)),
    *(LlamaCpp(), LlamaCpp(n_seq=3), LlamaCpp(n_seq=4, unified=True, draft_copies=2), Sglang()),
]
"""Dialects whose size follows from the context alone, not from how a prompt was cut."""


@pytest.mark.parametrize("dialect", SMOOTH, ids=repr)
@settings(max_examples=60, deadline=None)
@given(layers, context, context)
def test_more_context_never_costs_less(dialect, many, a, b):
    low, high = sorted((a, b))
    small = cache_bytes(spec_of(many), low, dialect).terms
    large = cache_bytes(spec_of(many), high, dialect).terms
    assert all(x <= y for x, y in zip(small, large, strict=True))


@pytest.mark.parametrize("dialect", [*SMOOTH, MlxLm(), MlxLm(decoded=True)], ids=repr)
@settings(max_examples=40, deadline=None)
@given(layers, layers, context)
def test_layers_add_up(dialect, first, second, tokens):
    together = cache_bytes(spec_of(first + second), tokens, dialect).terms
    apart = [cache_bytes(spec_of(many), tokens, dialect).terms for many in (first, second)]
    assert together == add_terms(apart)


@settings(max_examples=200, deadline=None)
@given(layers, context, st.integers(1, 4096))
def test_a_ring_never_costs_more_than_no_ring(many, tokens, chunk):
    ringed = cache_bytes(spec_of(many), tokens, Fieldfare(chunk_tokens=chunk))
    unringed = cache_bytes(spec_of(many), tokens, Fieldfare(chunked=False))
    assert ringed.ring_bytes <= unringed.ring_bytes
    assert ringed.total_bytes - ringed.ring_bytes == unringed.total_bytes - unringed.ring_bytes


@pytest.mark.parametrize("dialect", [*SMOOTH, MlxLm(), Vllm()], ids=repr)
@settings(max_examples=40, deadline=None)
@given(layers, context)
def test_bytes_are_whole_and_terms_sum_to_the_total(dialect, many, tokens):
    footprint = cache_bytes(spec_of(many), tokens, dialect)
    assert all(type(term) is int and term >= 0 for term in footprint.terms)
    assert sum(footprint.by_term().values()) == footprint.total_bytes
    assert footprint.key_bytes <= footprint.full_bytes + footprint.ring_bytes


@settings(max_examples=200, deadline=None)
@given(layers, context)
def test_a_session_costs_what_the_footprint_says(many, rows):
    session = SessionBytes(spec_of(many), Qwisp())
    footprint = cache_bytes(spec_of(many), rows, Qwisp())
    assert session.bytes(rows) == footprint.total_bytes
    assert session.fixed_bytes == footprint.fixed_bytes
    assert session.ring_bytes(rows) == footprint.ring_bytes


@settings(max_examples=100, deadline=None)
@given(st.lists(recurrent, min_size=1, max_size=4).map(tuple), context, context)
def test_states_do_not_depend_on_the_context(many, a, b):
    for dialect in (Qwisp(), LlamaCpp(n_seq=2), MlxLm(), Vllm()):
        one, two = (cache_bytes(spec_of(many), tokens, dialect).terms for tokens in (a, b))
        assert one == two
