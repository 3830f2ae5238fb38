"""What the receipts say, in sentences and one chart. Nothing here measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qwisp.receipts import Receipt
from qwisp.spec.catalog import load_machine
from qwisp.units import MIB

from .probes import BAR, PUBLISHED, server


def _by(receipts: Sequence[Receipt], metric: str, key: str) -> dict[Any, Receipt]:
    """Return the receipts of a metric by one of their inputs, in the order they were made."""
    return {r.inputs[key]: r for r in receipts if r.metric == metric}


def findings(receipts: Sequence[Receipt]) -> list[str]:
    """Return one sentence a finding, from what is there."""
    parts = (_toy, _published, _frontier, _limit, _mechanisms, _aliasing, _decoded)
    return [sentence for part in parts for sentence in part(receipts)] + list(CAVEATS)


def _toy(receipts: Sequence[Receipt]) -> list[str]:
    shares = _by(receipts, "toy_share", "lanes")
    copies = _by(receipts, "duplicated_bytes", "lanes")
    arenas = _by(receipts, "arena_bytes", "lanes")
    errors = _by(receipts, "arena_error", "lanes")
    peaks = _by(receipts, "peak_bytes", "lanes")
    return [
        f"Toy, {lanes} lanes of {receipt.inputs['shared_tokens']} shared tokens: "
        f"{copies[lanes].value:,} bytes held again, bit for bit; arena {arenas[lanes].value:,} "
        f"bytes, {errors[lanes].value} off the prediction; {receipt.value:.1%} of the peak of "
        f"{peaks[lanes].value:,} bytes ({receipt.instrument})"
        for lanes, receipt in shares.items()
        if all(lanes in found for found in (copies, arenas, errors, peaks))
    ]


def _published(receipts: Sequence[Receipt]) -> list[str]:
    shares = _by(receipts, "published_share", "run")
    saving = next((r.value for r in receipts if r.metric == "published_saving_bytes"), None)
    arenas = next((r.value for r in receipts if r.metric == "published_arena_bytes"), None)
    if saving is None or arenas is None:
        return []
    said = ", ".join(
        f"{r.value:.2%} of {r.inputs['peak_footprint_mib']:,} MiB ({run} run)"
        for run, r in shares.items()
    )
    return [
        f"Published point: {PUBLISHED['lanes']} x {PUBLISHED['arena_tokens']:,} rows are "
        f"{arenas / MIB:,.0f} MiB of arenas, of which at most {saving / MIB:,.0f} MiB could be "
        f"saved: {said}. An upper bound: that run shared no prefix."
    ]


def _frontier(receipts: Sequence[Receipt]) -> list[str]:
    crossing = _by(receipts, "crossing_tokens", "lanes")
    at_128k = _by(receipts, "share_at_128k", "lanes")
    read = _by(receipts, "crossing_read_s", "lanes")
    later = _by(receipts, "crossing_tokens_later", "lanes")
    said = [
        f"Frontier, {lanes} lanes: {float(BAR):.0%} of the peak from {receipt.value:,} shared "
        f"tokens on (at 128K {at_128k[lanes].value:.1%}); reading them once takes "
        f"{read[lanes].value / 60:,.0f} minutes by the cost model"
        for lanes, receipt in crossing.items()
        if lanes in at_128k and lanes in read
    ]
    if later:
        lengths = ", ".join(f"{r.value:,}" for r in later.values())
        peak_mib = PUBLISHED["peak_footprint_mib"]["later"]
        said.append(
            f"On the base of the later peak ({peak_mib:,} MiB) the crossings come sooner: "
            f"{lengths} tokens for {', '.join(map(str, later))} lanes"
        )
    return said


def _limit(receipts: Sequence[Receipt]) -> list[str]:
    most = _by(receipts, "largest_tokens", "lanes")
    shares = _by(receipts, "share_at_limit", "lanes")
    crossing = _by(receipts, "crossing_tokens", "lanes")
    said = []
    for lanes, receipt in most.items():
        if lanes not in shares or lanes not in crossing:
            continue
        reached = "is reached" if receipt.value >= crossing[lanes].value else "is never reached"
        said.append(
            f"The machine's limit ({receipt.inputs['limit']}), {lanes} lanes: at most "
            f"{receipt.value:,} shared tokens fit, {shares[lanes].value:.1%} of the peak; the bar "
            f"{reached}"
        )
    return said


def _mechanisms(receipts: Sequence[Receipt]) -> list[str]:
    said = []
    for name, receipt in _by(receipts, "trial", "mechanism").items():
        trial = receipt.value
        kernel = "another kernel" if trial["kernel_changed"] else "kernel untouched"
        said.append(
            f"{name[0].upper()}{name[1:]}: {trial['changed']} of {trial['of']} {UNITS[name]} "
            f"changed, {kernel}, {trial['bytes_saved']:,} bytes saved; {trial['note']}. "
            f"{MEANING[name]}"
        )
    return said


def _aliasing(receipts: Sequence[Receipt]) -> list[str]:
    said = [
        f"Aliasing in granules of {size:,} bytes: PSS smaller by {r.value['saved_bytes']:,} of "
        f"{r.value['duplicated_bytes']:,} bytes held again ({r.value['regions']} copies of a head "
        f"region), {r.value['changed']} of {r.value['of']} outputs changed"
        for size, r in _by(receipts, "aliasing", "granule_bytes").items()
    ]
    for size, r in _by(receipts, "granule_saving_bytes", "granule_bytes").items():
        said.append(
            f"At the published shape ({r.inputs['regions']} head regions a lane) granules of "
            f"{size:,} bytes, {r.inputs['rows_per_granule']:,} rows, would save "
            f"{r.value / MIB:,.0f} MiB"
        )
    return said


def _decoded(receipts: Sequence[Receipt]) -> list[str]:
    return [
        f"Rows that decode wrote against rows that prefill writes, kernels {kernels}: "
        f"{r.value['rows_changed']} of {r.value['rows']} have other bits"
        for kernels, r in _by(receipts, "decoded_rows", "kernels").items()
    ]


OUTPUTS = "outputs of a lane's head"
UNITS = {
    "paged table": OUTPUTS,
    "two-base kernel": OUTPUTS,
    "split softmax": OUTPUTS,
    "restore blobs": "replies",
    "live warm lane": "state elements",
    "address aliasing": OUTPUTS,
}
MEANING = {
    "paged table": (
        "A page table is a new argument: the frozen kernel knows one first row and a length."
    ),
    "two-base kernel": (
        "It keeps the order and every bit, but it is another kernel: no-go while the kernel is "
        "frozen, a candidate for an engine that may change its own."
    ),
    "split softmax": "Two parts merged by their log-sum-exp are another order of additions.",
    "restore blobs": "They save time, not bytes: every lane still gets its own rows.",
    "live warm lane": (
        "Terminal: a recurrent state that has gone on cannot be brought back to where the shared "
        "tokens end, not even by the exact inverse."
    ),
    "address aliasing": (
        "The same pages at several addresses: every lane's rows stay contiguous and the kernel as "
        "it is."
    ),
}
CAVEATS = (
    "What aliasing proves: on Linux, ranges whose first pages are one memory file give the frozen "
    "kernel the same bits and are counted once by PSS. RSS counts them once per mapping.",
    "What aliasing does not prove on Metal: MLX allocates its buffers itself and copies what is "
    "imported, a Metal buffer without copying needs one page-aligned range, and nothing here says "
    "whether the driver takes a range that holds the same pages twice, wires them once, or counts "
    "them once in phys_footprint. Pages there have 16 KiB, 32 rows of 512 bytes. It must be tried "
    "there before anything is designed on it; the same holds for CUDA, where a granule is 2 MiB.",
    "The recurrent state of a lane is its own whatever is shared, and every lane's prefix must end "
    "where that state was taken.",
    "Open: the share at the full shape was not measured but computed on a published base; the toy "
    "checks the numerator, not the denominator.",
)


def figures(receipts: Sequence[Receipt]) -> list[tuple[Any, str]]:
    """Return the frontier with the published point on it."""
    from qwisp.charts.shared_prefix import frontier_frame, shared_prefix_frontier

    lanes = list(_by(receipts, "crossing_tokens", "lanes"))
    shares = _by(receipts, "published_share", "run")
    if not lanes or "first" not in shares:
        return []
    machine = load_machine(PUBLISHED["machine"])
    frame = frontier_frame(
        server(), lanes, bar=BAR, limit_bytes=machine.usable_bytes, most_tokens=262_144
    )
    point = (PUBLISHED["arena_tokens"], shares["first"].value)
    chart = shared_prefix_frontier(frame, bar=BAR, point=point)
    return [(chart, "Dashes do not fit the machine; the dot is the published run, an upper bound.")]
