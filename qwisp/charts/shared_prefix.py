"""How much of a server's peak are copies of a shared prompt beginning, by length and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import altair as alt
import polars as pl

from qwisp.memory.shared_prefix import SharedPrefix

_WIDTH = 640


def frontier_frame(
    server: SharedPrefix,
    lanes: Sequence[int],
    *,
    bar: Fraction,
    limit_bytes: int,
    most_tokens: int,
    num_points: int = 65,
) -> pl.DataFrame:
    """Return `lanes`, `shared_tokens`, `share` and whether it `fits`, up to `most_tokens`.

    The last length that fits is in both parts of a curve, so that they meet; the length at which
    `bar` is reached is added.
    """
    rows: list[tuple[str, int, float, str]] = []
    for count in lanes:
        last = min(server.largest_tokens(count, limit_bytes), most_tokens)
        points = {most_tokens * i // (num_points - 1) for i in range(num_points)} | {last}
        crossing = server.crossing_tokens(count, bar)
        if crossing is not None and crossing <= most_tokens:
            points.add(crossing)
        for tokens in sorted(points):
            share = float(server.share(count, tokens))
            if tokens <= last:
                rows.append((str(count), tokens, share, "fits"))
            if tokens >= last and last < most_tokens:
                rows.append((str(count), tokens, share, "does not fit"))
    names = {"lanes": pl.String, "shared_tokens": pl.Int64, "share": pl.Float64, "fits": pl.String}
    return pl.DataFrame(rows, schema=names, orient="row")


def shared_prefix_frontier(
    frame: pl.DataFrame, *, bar: Fraction, point: tuple[int, float] | None = None
) -> alt.LayerChart:
    """Return the share of the peak by shared tokens, a curve a number of lanes, and the bar.

    `frame` is what `frontier_frame` returns; dashes do not fit the machine. `point` is a run as
    (tokens, share).
    """
    above = frame.filter((pl.col("share") >= float(bar)) & (pl.col("fits") == "fits"))
    percent = f"{float(bar) * 100:.3g} %"
    title = f"no length that fits makes copies {percent} of the peak"
    if above.height:
        first = above.sort("shared_tokens").row(0, named=True)
        where = f"{first['shared_tokens']:,} shared tokens"
        title = f"in {first['lanes']} lanes, copies reach {percent} of the peak at {where}"
    lines = (
        alt.Chart(frame)
        .mark_line()
        .encode(
            x=alt.X("shared_tokens:Q", title="shared prefix (tokens)"),
            y=alt.Y("share:Q", title="copies, of the peak (%)", axis=alt.Axis(format="%")),
            color=alt.Color("lanes:N", title="lanes", sort=None),
            strokeDash=alt.StrokeDash(
                "fits:N", title=None, sort=None, scale=_dashes(frame["fits"].to_list())
            ),
        )
    )
    line = alt.Chart(pl.DataFrame({"bar": [float(bar)]}))
    rule = line.mark_rule(color="#333", strokeWidth=1.5).encode(y="bar:Q")
    layers = [lines, rule]
    if point is not None:
        run = pl.DataFrame({"shared_tokens": [point[0]], "share": [point[1]]})
        mark = alt.Chart(run).mark_point(filled=True, size=120, color="#333")
        layers.append(mark.encode(x="shared_tokens:Q", y="share:Q"))
    return alt.layer(*layers).properties(width=_WIDTH, height=280, title=title)


def _dashes(present: list[str]) -> alt.Scale:
    dashes = {"fits": [1, 0], "does not fit": [5, 4]}
    names = [name for name in dashes if name in present]
    return alt.Scale(domain=names, range=[dashes[name] for name in names])
