"""The probes of the study: each a receipt, none repeated once it is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qwisp.cost import load_cost
from qwisp.memory.session_bytes import SessionBytes
from qwisp.memory.shared_prefix import Granule, SharedPrefix
from qwisp.receipts import Measured, ReceiptBook, hash_inputs
from qwisp.sim.stalls import idle_first_token_s
from qwisp.spec.catalog import load_machine, load_model
from qwisp.spec.layers import FullAttention
from qwisp.units import KIB, MIB

from . import mechanisms
from .aliasing import PAGE_BYTES, Shape, why_not
from .toy import CONFIG, OWN_TOKENS, SHARED_TOKENS, in_a_process, serving

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
BAR = Fraction(1, 10)
LANES = (2, 3, 4)
FRONTIER_LANES = (2, 3, 4, 8)
TOY = {"model": "toy hybrid", "model_hash": hash_inputs(CONFIG), "seed": 0}
MODEL_OF_MEMORY = "model of memory"
Run = dict[str, Any]
Serve = Callable[[int, bool], Run]  # lanes, keeps prefixes: served once, when first needed
GRANULES = ((4 * KIB, 1001), (16 * KIB, 1001), (2 * MIB, 5001))  # with the rows shared in the trial
# Four lanes: a page of 4 KiB by its mappings is then a whole KiB, which is what smaps prints.
TRIAL_LANES, TRIAL_GROUPS, TRIAL_HEADS, TRIAL_DIM, TRIAL_OWN_ROWS = 4, 2, 4, 256, 40


def measure(book: ReceiptBook) -> None:
    """Fan out on the engine, recompute the published point, draw the frontier, try mechanisms."""
    serve = cache(lambda lanes, keeps: in_a_process(**_fan_out_inputs(lanes), keeps_prefixes=keeps))
    fan_out(book, serve)
    published_point(book)
    frontier(book)
    granules_at_full_shape(book)
    try_mechanisms(book, serve)


# ---- the engine ------------------------------------------------------------------------------


def fan_out(book: ReceiptBook, serve: Serve) -> None:
    for lanes in LANES:
        for metric, value, unit, instrument in ENGINE_PROBES:

            def probe(
                lanes: int = lanes,
                value: Callable[[Run], Any] = value,
                unit: str = unit,
                instrument: str = instrument,
            ) -> Measured:
                run = serve(lanes, False)
                return Measured(value(run), unit, instrument.format(**run))

            book.once(metric, _fan_out_inputs(lanes), probe, **TOY)


BUFFERS = "sizes of MLX buffers"
BITS = "rows of the arena compared by bits"
PEAK = "{peak_instrument} of a fresh process, highest of one sample a round"
ENGINE_PROBES: tuple[tuple[str, Callable[[Run], Any], str, str], ...] = (
    ("arena_bytes", lambda r: r["arena_bytes"], "bytes", BUFFERS),
    (
        "arena_error",
        lambda r: abs(r["arena_bytes"] - r["predicted_arena_bytes"]),
        "bytes",
        f"{BUFFERS}, against the {MODEL_OF_MEMORY}",
    ),
    ("duplicated_bytes", lambda r: r["duplicated_bytes"], "bytes", BITS),
    (
        "duplicated_error",
        lambda r: abs(r["duplicated_bytes"] - r["predicted_duplicated_bytes"]),
        "bytes",
        f"{BITS}, against (B - 1) x shared x bytes per token",
    ),
    ("peak_bytes", lambda r: r["peak_bytes"], "bytes", PEAK),
    ("mlx_peak_bytes", lambda r: r["mlx_peak_bytes"], "bytes", "mlx_peak of a fresh process"),
    ("toy_share", lambda r: round(r["duplicated_bytes"] / r["peak_bytes"], 6), "", PEAK),
)


def _fan_out_inputs(lanes: int) -> dict[str, Any]:
    return serving(lanes=lanes, shared_tokens=SHARED_TOKENS, own_tokens=OWN_TOKENS)


# ---- the published point and the frontier ------------------------------------------------------


def server(peak: str = "first") -> SharedPrefix:
    """Return the published process: what its sessions do not cause is its base."""
    session = SessionBytes(load_model(PUBLISHED["model"]))
    peak_bytes = PUBLISHED["peak_footprint_mib"][peak] * MIB
    sessions = PUBLISHED["lanes"] * session.bytes(PUBLISHED["arena_tokens"])
    return SharedPrefix(
        base_bytes=peak_bytes - sessions,
        fixed_bytes=session.fixed_bytes,
        row_bytes=session.row_bytes,
    )


def published_point(book: ReceiptBook) -> None:
    lanes, tokens = PUBLISHED["lanes"], PUBLISHED["arena_tokens"]
    shape = {"lanes": lanes, "arena_tokens": tokens, "source": PUBLISHED["source"]}
    point = server()
    arenas = lanes * tokens * point.row_bytes
    copies = point.duplicated_bytes(lanes, tokens)
    _say(book, "published_arena_bytes", shape, arenas, "bytes", MODEL_OF_MEMORY)
    _say(book, "published_saving_bytes", shape, copies, "bytes", MODEL_OF_MEMORY)
    instrument = f"{MODEL_OF_MEMORY} over the published peak footprint"
    for name, peak_mib in PUBLISHED["peak_footprint_mib"].items():
        inputs = shape | {"run": name, "peak_footprint_mib": peak_mib}
        share = round(copies / (peak_mib * MIB), 6)
        _say(book, "published_share", inputs, share, "", instrument)


def frontier(book: ReceiptBook) -> None:
    point, machine = server(), load_machine(PUBLISHED["machine"])
    cost = load_cost(PUBLISHED["model"], PUBLISHED["machine"])
    coefficients = ("name", "chunk_tokens", "round_ps", "chunk_ps", "token_ps", "depth_ps")
    calibration = {"calibration": {name: getattr(cost, name) for name in coefficients}}
    where = f"{MODEL_OF_MEMORY} on the published base"
    base = {"base_bytes": point.base_bytes, "bar": float(BAR)}
    limit = base | {"limit_bytes": machine.usable_bytes, "limit": machine.usable_rule}
    for lanes in FRONTIER_LANES:
        tokens = point.crossing_tokens(lanes, BAR)
        assert tokens is not None
        at = base | {"lanes": lanes}
        _say(book, "crossing_tokens", at, tokens, "tokens", where)
        _say(book, "crossing_peak_bytes", at, point.peak_bytes(lanes, tokens), "bytes", where)
        seconds = round(idle_first_token_s(cost, tokens, budget_tokens=2048), 1)
        how = "simulator, beyond the measured depths"
        _say(book, "crossing_read_s", at | calibration, seconds, "s", how)
        share = round(float(point.share(lanes, 128 * KIB)), 6)
        _say(book, "share_at_128k", at, share, "", where)
        at = limit | {"lanes": lanes}
        most = point.largest_tokens(lanes, machine.usable_bytes)
        _say(book, "largest_tokens", at, most, "tokens", where)
        share = round(float(point.share(lanes, most)), 6)
        _say(book, "share_at_limit", at, share, "", where)
    for lanes in LANES:
        at = base | {"lanes": lanes, "base_bytes": server("later").base_bytes}
        tokens = server("later").crossing_tokens(lanes, BAR)
        _say(book, "crossing_tokens_later", at, tokens, "tokens", where)


def granules_at_full_shape(book: ReceiptBook) -> None:
    model = load_model(PUBLISHED["model"])
    full = [layer for layer in model.caches if isinstance(layer, FullAttention)]
    regions = sum(2 * layer.kv_heads for layer in full)
    row_bytes = full[0].k_dim * 2
    lanes, tokens = PUBLISHED["lanes"], PUBLISHED["arena_tokens"]
    for granule_bytes, _ in GRANULES:
        granule = Granule(granule_bytes=granule_bytes, row_bytes=row_bytes)
        inputs = {
            "lanes": lanes,
            "shared_tokens": tokens,
            "granule_bytes": granule_bytes,
            "rows_per_granule": granule.rows,
            "regions": regions,
        }
        saved = granule.saved_bytes(lanes, tokens, num_regions=regions)
        _say(book, "granule_saving_bytes", inputs, saved, "bytes", MODEL_OF_MEMORY)


def _say(
    book: ReceiptBook, metric: str, inputs: dict[str, Any], value: Any, unit: str, instrument: str
) -> None:
    """Keep a computed value."""
    measured = Measured(value, unit, instrument)
    book.once(metric, inputs, lambda: measured, model=PUBLISHED["model"])


# ---- mechanisms --------------------------------------------------------------------------------


def try_mechanisms(book: ReceiptBook, serve: Serve) -> None:
    kernel = {"kernel": mechanisms.kernel_hash()}
    prepared = cache(lambda: _prepared(*GRANULES[0]))
    rng = np.random.default_rng(1)
    shape = kernel | _trial_inputs(*GRANULES[0])
    bits = "numpy reference kernel, outputs compared by bits"
    trials: dict[str, tuple[dict[str, Any], str, Callable[[], mechanisms.Trial]]] = {
        "paged table": (
            shape | {"page_rows": 64},
            bits,
            lambda: mechanisms.paged(*prepared()[:2], page_rows=64, rng=rng),
        ),
        "two-base kernel": (shape, bits, lambda: mechanisms.two_bases(*prepared()[:2])),
        "split softmax": (shape, bits, lambda: mechanisms.split_softmax(*prepared()[:2])),
        "restore blobs": (
            _fan_out_inputs(3),
            "the engine, replies and bytes",
            lambda: _restored(serve),
        ),
        "live warm lane": (
            {"dim": 128, "steps": 8},
            "numpy reference of the recurrence, state compared by bits",
            lambda: mechanisms.rewound_state(dim=128, steps=8, rng=np.random.default_rng(2)),
        ),
    }
    if not why_not():
        trials["address aliasing"] = (
            shape,
            f"{bits}; PSS of the ranges, /proc/self/smaps",
            lambda: mechanisms.aliased(*prepared()),
        )
    for name, (inputs, instrument, call) in trials.items():
        _try(book, name, inputs, instrument, cache(call))
    _other_granules(book, kernel)
    _decoded_rows(book)


def _try(
    book: ReceiptBook,
    name: str,
    inputs: dict[str, Any],
    instrument: str,
    call: Callable[[], mechanisms.Trial],
) -> None:
    inputs = inputs | {"mechanism": name}
    trial = book.once("trial", inputs, lambda: Measured(call()._asdict(), "", instrument)).value
    saves = not trial["kernel_changed"] and not trial["changed"] and trial["bytes_saved"] > 0
    book.once("saves_untouched", inputs, lambda: Measured(int(saves), "", instrument))


def _trial_inputs(granule_bytes: int, shared: int) -> dict[str, Any]:
    return {
        "lanes": TRIAL_LANES,
        "kv_heads": TRIAL_GROUPS,
        "heads": TRIAL_HEADS,
        "dim": TRIAL_DIM,
        "shared_rows": shared,
        "own_rows": TRIAL_OWN_ROWS,
        "granule_bytes": max(granule_bytes, PAGE_BYTES),
    }


def _prepared(granule_bytes: int, shared: int) -> tuple[mechanisms.Case, np.ndarray, int]:
    """Return a case, the frozen kernel's output over private memory, and the PSS of that."""
    granule_bytes = max(granule_bytes, PAGE_BYTES)
    per_granule = granule_bytes // (TRIAL_DIM * 2)
    shape = Shape(
        lanes=TRIAL_LANES,
        groups=TRIAL_GROUPS,
        rows=-(-(shared + TRIAL_OWN_ROWS) // per_granule) * per_granule,
        dim=TRIAL_DIM,
        shared=shared,
        granule_bytes=granule_bytes,
    )
    rng = np.random.default_rng(0)
    case = mechanisms.make_case(shape, heads=TRIAL_HEADS, own_rows=TRIAL_OWN_ROWS, rng=rng)
    expected, pss_bytes = mechanisms.frozen(case, aliases=False)
    return case, expected, pss_bytes


def _restored(serve: Serve) -> mechanisms.Trial:
    """Serve the fan-out again with prefixes kept, and compare with the run without."""
    plain, kept = serve(3, False), serve(3, True)
    changed = sum(a != b for a, b in zip(plain["replies"], kept["replies"], strict=True))
    saved = plain["arena_bytes"] - kept["arena_bytes"] - kept["blob_bytes"]
    note = (
        f"{kept['prefilled_tokens']} tokens prefilled instead of {plain['prefilled_tokens']}; "
        f"blobs of {kept['blob_bytes']} bytes beside the same arena"
    )
    return mechanisms.Trial(changed, len(plain["replies"]), False, saved, note)


def _other_granules(book: ReceiptBook, kernel: dict[str, Any]) -> None:
    """Alias with every granule: what is saved, and what was to be saved, in bytes."""
    for granule_bytes, shared in GRANULES if not why_not() else ():
        prepared = cache(lambda g=granule_bytes, s=shared: _prepared(g, s))

        def probe(prepared: Callable[[], Any] = prepared) -> Measured:
            case, expected, private_bytes = prepared()
            trial = mechanisms.aliased(case, expected, private_bytes)
            value = {
                "changed": trial.changed,
                "of": trial.of,
                "saved_bytes": trial.bytes_saved,
                "duplicated_bytes": case.duplicated_bytes,
                "regions": 2 * case.shape.groups * (case.shape.lanes - 1),
            }
            return Measured(value, "", "PSS of the ranges, /proc/self/smaps; outputs by bits")

        book.once("aliasing", kernel | _trial_inputs(granule_bytes, shared), probe)


def _decoded_rows(book: ReceiptBook) -> None:
    for kernels in ("as they are on this processor", "with order by shape, as on a GPU"):
        hostile = kernels.startswith("with")
        inputs = serving(prompt_tokens=200)

        def probe(hostile: bool = hostile, inputs: dict[str, Any] = inputs) -> Measured:
            found = in_a_process(**inputs, hostile=hostile)
            return Measured(found, "rows", "rows of the arena compared by bits")

        book.once("decoded_rows", inputs | {"kernels": kernels}, probe, **TOY)
