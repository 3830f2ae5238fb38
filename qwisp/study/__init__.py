"""Step-0 studies: is an idea worth designing? Bars first, measurements second, a computed verdict.

```python
study = Study(
    id="shared_prefix_kv",
    question="Is duplicated prefix KV a material cost?",
    criteria=[Criterion("material", "duplicated_share", 0.10, "below", "less is not worth it")],
    protocol="fan-out with a real shared prefix, B = 2, 3, 4",
    measure=measure,  # (book) -> None, one book.once(...) per probe
)
```
Saved as `experiments/<id>/study.py`, it is run and judged by `qwisp study`.
"""

from __future__ import annotations

from qwisp.study.declare import Criterion, Study
from qwisp.study.find import load_study, study_ids
from qwisp.study.judge import Judged, Verdict, run_study, verdict_of
from qwisp.study.page import verdict_markdown

__all__ = [
    "Criterion",
    "Judged",
    "Study",
    "Verdict",
    "load_study",
    "run_study",
    "study_ids",
    "verdict_markdown",
    "verdict_of",
]
