"""The one writer of a receipts file: it holds a lock, appends whole lines, and resumes.

A line is on disk before `once` returns, so a kill at any instant loses at most the measurement
that was being made.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType

from qwisp.errors import BadInput
from qwisp.receipts.record import (
    Json,
    Measured,
    Receipt,
    canonical,
    hash_inputs,
    parse_receipts,
    to_line,
)
from qwisp.receipts.stamp import Stamp


class ReceiptBook:
    """An open receipts file. `clock` returns seconds since 1970; `torn` is what was healed.

    `study` and `criteria_hash` go into every receipt. Raises `BadInput` if another writer has the
    file, or if it holds anything but receipts.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        stamp: Stamp,
        clock: Callable[[], float],
        study: str = "",
        criteria_hash: str = "",
    ) -> None:
        self.path = Path(path)
        self.stamp = stamp
        self.clock = clock
        self.study = study
        self.criteria_hash = criteria_hash
        self._mutex = Lock()
        self._fd = _open_locked(self.path)
        try:
            self.torn = self._load()
        except BaseException:
            os.close(self._fd)
            raise

    def _load(self) -> str:
        data = _read_all(self._fd)
        found = parse_receipts(data, str(self.path))
        self._receipts = list(found.all)
        self._by_hash = {receipt.inputs_hash: receipt for receipt in found.all}
        if found.torn:
            os.ftruncate(self._fd, data.rfind(b"\n") + 1)
            _to_disk(self._fd)
        elif data and not data.endswith(b"\n"):
            self._append_bytes(b"\n")
        return found.torn

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """All receipts of the file, those of earlier runs included."""
        return tuple(self._receipts)

    def once(
        self,
        metric: str,
        inputs: Mapping[str, Json],
        measure: Callable[[], Measured],
        *,
        model: str = "",
        model_hash: str = "",
        seed: int | None = None,
    ) -> Receipt:
        """Return the receipt of `metric` under `inputs`; call `measure` only if there is none yet.

        Raises what `measure` raises, and then stores nothing.
        """
        identity = [self.study, metric, dict(inputs), model, model_hash, seed]
        inputs_hash = hash_inputs(identity)
        known = self._by_hash.get(inputs_hash)
        if known is not None:
            return known
        started_s = self.clock()
        measured = measure()
        receipt = Receipt(
            metric=metric,
            inputs=dict(inputs),
            inputs_hash=inputs_hash,
            value=measured.value,
            unit=measured.unit,
            instrument=measured.instrument,
            started_s=started_s,
            ended_s=self.clock(),
            machine=dict(self.stamp.machine),
            packages=dict(self.stamp.packages),
            commit=self.stamp.commit,
            is_dirty=self.stamp.is_dirty,
            study=self.study,
            criteria_hash=self.criteria_hash,
            model=model,
            model_hash=model_hash,
            seed=seed,
        )
        canonical(measured.value)  # refuses what could not be read back, before anything is written
        with self._mutex:
            if inputs_hash in self._by_hash:  # another thread was faster
                return self._by_hash[inputs_hash]
            self._append_bytes(to_line(receipt).encode() + b"\n")
            self._receipts.append(receipt)
            self._by_hash[inputs_hash] = receipt
        return receipt

    def _append_bytes(self, data: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
            _to_disk(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, size)  # a full disk must not leave half a line
            what = f"receipts {self.path} cannot be written: {error.strerror}"
            raise BadInput(what, "free some disk space and run it again: it resumes") from None

    def close(self) -> None:
        """Give up the file and its lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ReceiptBook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _open_locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise BadInput(
            f"receipts {path}: {error.strerror}", "give a file that can be written"
        ) from None
    try:
        # The kernel drops the lock with the process, however it dies.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        what = f"receipts {path} is being written by another run"
        raise BadInput(what, "wait for it to end, or stop it: nothing it stored is lost") from None
    except OSError as error:
        os.close(fd)
        what = f"receipts {path} cannot be locked: {error.strerror}"
        raise BadInput(what, "keep receipts on a local disk") from None
    if is_new:
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    return fd


def _read_all(fd: int) -> bytes:
    parts = []
    os.lseek(fd, 0, os.SEEK_SET)
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _to_disk(fd: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError:  # a file system that lacks it, like a mounted share
            pass
    os.fsync(fd)
