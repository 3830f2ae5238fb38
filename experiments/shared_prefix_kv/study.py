"""Is duplicated prefix KV a material cost, and can it be avoided without touching the kernel?"""

from __future__ import annotations

from qwisp.study import Criterion, Study

from .findings import figures, findings
from .probes import measure

study = Study(
    id="shared_prefix_kv",
    question=(
        "Is duplicated prefix KV a material cost, and can it be avoided without touching "
        "sdpa_rows or the accumulation order?"
    ),
    criteria=[
        Criterion(
            "material",
            "published_share",
            0.10,
            "below",
            "a tenth of the peak is the least that pays for a second way to hold rows; the larger "
            "share of the two published peaks counts, and all rows count as shared",
            reduce="max",
            num_receipts=2,
        ),
        Criterion(
            "mechanism",
            "saves_untouched",
            1,
            "below",
            "the bits of every lane are promised for this kernel and this order: a mechanism has "
            "to save bytes with the kernel as it is and no bit changed",
            reduce="max",
            num_receipts=6,
        ),
        Criterion(
            "numerator",
            "duplicated_error",
            0,
            "above",
            "the share is computed as (B - 1) x shared x bytes per token; it counts only if an "
            "engine's lanes hold exactly so many bytes twice, bit for bit",
            reduce="max",
            num_receipts=3,
            unit="bytes",
        ),
    ],
    protocol=(
        "B = 2, 3, 4 prompts with the same 384 first tokens are served by the engine at toy scale, "
        "each in a process of its own: arena bytes, rows that are the same bits in another lane, "
        "peak footprint. The toy's share of its own peak says nothing about a real model, so the "
        "bar is held against a published run of the real one: what three lanes of 30,795 rows "
        "could save at most. From the same base follow the lengths at which the share crosses the "
        "bar, in whole windows of 256 tokens, and what the machine's limit leaves of them. Six "
        "mechanisms are run against the numpy definition of the kernel, or on the engine, and "
        "compared by bits; pages are mapped at several addresses and counted by PSS."
    ),
    measure=measure,
    findings=findings,
    figures=figures,
)
