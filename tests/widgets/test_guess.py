"""The guess slider holds a plain number and shows the question as text."""

from __future__ import annotations

from qwisp.widgets.guess import Guess


def test_moving_the_slider_changes_the_guess() -> None:
    guess = Guess("How much?", low=1, high=1000, start=10, unit="GiB")
    assert guess.value == 10.0
    guess.slider.value = 100.0
    assert guess.value == 100.0
    assert "GiB" in guess.slider.description


def test_a_question_is_text_and_never_markup() -> None:
    guess = Guess("<script>x</script>", low=1, high=10, start=2, unit="s")
    assert "<script>" not in guess.children[0].value
