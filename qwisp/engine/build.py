"""Everything behind `drive`: scheduler and executor over one layout, arena and model."""

from __future__ import annotations

from typing import NamedTuple

from qwisp.engine.cache.arena import Arena, ArenaPlan
from qwisp.engine.clients import Clients
from qwisp.engine.executor import MlxExecutor
from qwisp.engine.model.ops import Ops
from qwisp.engine.model.own_kernels import gpu_backend
from qwisp.engine.model.step import Context, Tap, no_tap
from qwisp.engine.spec.identity import Identity, Safeguards, decode_width
from qwisp.engine.weights.loaded import LoadedModel
from qwisp.memory.session_bytes import SessionBytes
from qwisp.policies import scheduler_for
from qwisp.scheduling.layout import Layout
from qwisp.scheduling.row_space import RowSpace
from qwisp.scheduling.scheduler import Scheduler
from qwisp.scheduling.settings import Settings


class Engine(NamedTuple):
    """`drive(engine.scheduler, engine.executor)` serves the clients."""

    scheduler: Scheduler
    executor: MlxExecutor
    size: SessionBytes

    @property
    def identity(self) -> Identity:
        """What the bits are promised for."""
        return self.executor.identity


def open_engine(
    model: LoadedModel,
    layout: Layout,
    clients: Clients,
    settings: Settings,
    *,
    width: int | None = None,
    safeguards: Safeguards | None = None,
    ops: Ops | None = None,
    tap: Tap = no_tap,
    ahead: int | None = None,
    keeps_logits: bool = False,
    poisons: bool = False,
    is_compiled: bool | None = None,
    has_kernels: bool | None = None,
) -> Engine:
    """Allocate the arena of a layout and return scheduler and executor over it.

    `width` is the decode width, by default 8 or the lanes, whichever is more. What is None follows
    the backend: steps are compiled and issued ahead on a GPU, own kernels run on CUDA. On a CPU a
    step is bound by its products, and one issued ahead copies the arena that the last one reads.
    """
    backend = gpu_backend()
    on_gpu = backend is not None and ops is None
    chunk = settings.chunk_tokens
    size = SessionBytes(model.spec, None, chunk)
    scheduler = scheduler_for(layout, size, settings)
    identity = Identity(
        width=max(width or 8, decode_width(layout.lanes)),
        chunk_tokens=chunk,
        dtype=model.dtype,  # type: ignore[arg-type]
        backend=backend or "cpu",
        safeguards=safeguards or Safeguards(),
        is_compiled=on_gpu if is_compiled is None else is_compiled,
        has_kernels=on_gpu and backend == "cuda" if has_kernels is None else has_kernels,
    )
    arena = Arena(model.decoder.spec, arena_plan(scheduler.space, layout, chunk), model.dtype)
    context = Context(ops or Ops(), identity.safeguards, tap, poisons)
    executor = MlxExecutor(
        model.decoder,
        arena,
        identity,
        clients,
        context=context,
        ahead=int(backend is not None) if ahead is None else ahead,
        keeps_logits=keeps_logits,
    )
    return Engine(scheduler, executor, size)


def arena_plan(space: RowSpace, layout: Layout, chunk_tokens: int) -> ArenaPlan:
    """Return the rows and slots of a row space."""
    rows = layout.arena(space.size)
    return ArenaPlan(num_rows=rows.num_rows, slot_rows=rows.slot_rows, chunk_tokens=chunk_tokens)
