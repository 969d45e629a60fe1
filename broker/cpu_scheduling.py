"""How Linux shares processors among threads, as far as Python's ``os`` has no word for it.

A thread that computes for milliseconds without a system call, on kernels without full preemption,
keeps its processor until the next tick (up to 4 ms) although a more urgent one has woken up on
another one: the kernel makes a note, and looks at it at the thread's next interrupt. Measured with
6.18, a hash of passwords and a reader of a pipe on one core: p50 of a wake-up 1.4 ms whatever the
hash's nice value, slice or policy (SCHED_IDLE, too); 0.1 ms when a timer interrupts the hash every
0.2 ms. So a timer interrupts the process that computes for unauthenticated clients; it is of the
kind (SCHED_IDLE) that gives way to others: p99 0.3 ms, and 0.8 or more with other kinds.

Everything here is a hint: where the system knows nothing of it, nothing happens. Imports nothing of
the broker, because small processes use it, too.
"""

import contextlib
import ctypes
import os
import platform
import sys
from typing import Any, Final

INTERRUPT_S: Final = 0.0002
_SLICE_NS: Final = 100_000  # the kernel's least
_SETATTR_CALLS: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_PR_SET_PDEATHSIG: Final = 1
_SIGKILL: Final = 9


class _SchedAttr(ctypes.Structure):
    """struct sched_attr of sched_setattr(2), first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),  # of a fair policy: its slice, from Linux 6.12 on
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def _library() -> Any:
    return ctypes.PyDLL(None) if sys.platform == "linux" else None


_C: Final = _library()


def run_behind_others(*, idle: bool) -> None:
    """The calling thread gets a processor only while no other wants it, or little more.

    Only for a process whose locks no other waits for; all threads of the broker wait for the GIL.

    Args:
        idle: others that wake up take the processor at once. Where they never rest, it gets
            0.3 % of what one of them does; else 1.5 %, and keeps the processor for 0.1 ms once it
            has it (in practice until the next tick, for one that wakes up within that).
    """
    if sys.platform != "linux":
        return
    policy = os.SCHED_IDLE if idle else os.SCHED_BATCH
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))
    if idle:
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    number = _SETATTR_CALLS.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_BATCH:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _SchedAttr(ctypes.sizeof(_SchedAttr), policy, 0, nice, 0, _SLICE_NS, 0, 0)
    _C.syscall(number, 0, ctypes.byref(attr), 0)


def die_with_parent() -> None:
    """The calling process is killed when the thread that made it ends."""
    if sys.platform == "linux":
        _C.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
