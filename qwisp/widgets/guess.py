"""A slider for the reader's guess, asked before the answer is computed."""

from __future__ import annotations

import html
import math

import ipywidgets


class Guess(ipywidgets.VBox):
    """A question and a logarithmic slider from `low` to `high`; `value` is the guess.

    >>> Guess("How many tokens fit?", low=1e3, high=1e6, start=32_000, unit="tokens").value
    32000.0
    """

    def __init__(self, question: str, *, low: float, high: float, start: float, unit: str) -> None:
        self.question = question
        self.unit = unit
        self.slider = ipywidgets.FloatLogSlider(
            value=start,
            min=math.log10(low),
            max=math.log10(high),
            step=0.01,
            description=f"guess ({unit})",
            readout_format=",.4g",
            style={"description_width": "initial"},
            layout={"width": "480px"},
        )
        text = ipywidgets.HTML(f"<b>{html.escape(question)}</b>")
        super().__init__([text, self.slider])

    @property
    def value(self) -> float:
        """The guess, in `unit`."""
        return float(self.slider.value)
