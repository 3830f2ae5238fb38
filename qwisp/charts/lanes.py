"""Charts about lanes: what each safeguard of the engine keeps."""

from __future__ import annotations

import altair as alt
import polars as pl


def bits_without(frame: pl.DataFrame, *, of: int) -> alt.LayerChart:
    """Return bars of `safeguard`, `kept`: replies of `of` that keep every bit without it.

    >>> frame = pl.DataFrame({"safeguard": ["fixed_width", "raw_rings"], "kept": [0, 16]})
    >>> bits_without(frame, of=16).title
    'without fixed_width, 0 of 16 replies keep every bit'
    """
    worst = frame.sort("kept").row(0, named=True)
    title = f"without {worst['safeguard']}, {worst['kept']} of {of} replies keep every bit"
    base = alt.Chart(frame).encode(
        x=alt.X("kept:Q", title="replies that keep every bit", scale=alt.Scale(domain=[0, of])),
        y=alt.Y("safeguard:N", title="taken away", sort=frame["safeguard"].to_list()),
    )
    text = base.mark_text(align="left", dx=4).encode(text="kept:Q")
    return (base.mark_bar() + text).properties(title=title, width=560)
