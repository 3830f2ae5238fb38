"""Own kernels: one body each, between a prelude (host, CUDA, Metal) and the call that loads it.

The folder is read by path: `kernels` as an importable name would hide a package of others.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import qwisp
from qwisp.errors import NotInstalled

PACKAGE = Path(qwisp.__file__).resolve().parent
PLACES = (PACKAGE.parent / "kernels", PACKAGE / "_kernels")


@cache
def kernel_text(name: str) -> str:
    """Return a file of the kernels' folder, like `sdpa_rows/body.h`.

    Raises `NotInstalled` where the folder is absent.
    """
    for folder in PLACES:
        if (folder / name).is_file():
            return (folder / name).read_text("utf-8")
    raise NotInstalled(f"kernel file {name} is missing", "install qwisp again")


def host_source() -> str:
    """Return one C++ file with every kernel for the host, one exported function each.

    A function runs `groups` thread groups one after another, each with its lanes in lock step.
    """
    parts = [kernel_text("prelude/host.h"), kernel_text("sdpa_rows/body.h")]
    for head in (32, 64, 128, 256):
        parts.append(_host_sdpa(head))
    parts.append(_HOST_DELTA.replace("BODY", kernel_text("gated_delta_step/step.h")))
    return "\n".join(parts)


def _host_sdpa(head: int) -> str:
    text = _HOST_SDPA.replace("PARTIALS", kernel_text("sdpa_rows/partials.h"))
    return text.replace("COMBINE", kernel_text("sdpa_rows/combine.h")).replace("HEAD", str(head))


_HOST_SDPA = """
extern "C" void sdpa_rows_partials_HEAD(
    int groups_to_run, const float *q, const float *k, const float *v, const int64_t *base,
    const int *length, const int *position, const int *ring, const int *sizes,
    float *m, float *l, float *o) {
  typedef float T;
  const int D = HEAD;
  for (int group = 0; group < groups_to_run; ++group) {
PARTIALS
  }
}
extern "C" void sdpa_rows_combine_HEAD(
    int groups_to_run, const float *m, const float *l, const float *o, const int *length,
    const int *sizes, float *out) {
  const int D = HEAD;
  for (int group = 0; group < groups_to_run; ++group) {
COMBINE
  }
}
"""

_HOST_DELTA = """
extern "C" void gated_delta_step(
    int groups_to_run, int HV, int DV, int DK, const float *q, const float *k, const float *v,
    const float *decay, const float *beta, const float *state, const int *live,
    const int *steps, float *y, float *next) {
  for (int group = 0; group < groups_to_run; ++group) {
BODY
  }
}
"""
