# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts values of 1 MiB into a backend of the store, or reads them, and says how it went, in JSON.

usage: values.py put|get BACKEND FIRST COUNT [SECONDS [PAUSE]]

While it puts, a process beside it looks at the tier. A value that is refused, as while memory is full, is offered
again, for SECONDS at most; after two that were given up it ends. PAUSE is between any two.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shlex
import sys
import time
from typing import Any

MIB = 1024**2
LOOK_S = 0.02


def settings(path: str) -> dict[str, str]:
    with open(path) as file:
        lines = [shlex.split(line) for line in file if "=" in line and not line.startswith("#")]
    return dict(line[0].split("=", 1) for line in lines)


def key_of(backend: str, number: int) -> str:
    return f"{backend}-{number:06}"


def value_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest() * (MIB // 32)


def allocated(path: str) -> int | None:
    """Return what the tier takes; None when something went meanwhile, which may have been counted with what came."""
    names = os.listdir(path)
    try:
        total = sum(os.lstat(os.path.join(path, name)).st_blocks * 512 for name in names)
    except FileNotFoundError:
        return None
    return total if set(names) <= set(os.listdir(path)) else None


def look(path: str, end: Any, answer: Any) -> None:
    """Take samples of what the tier takes on its disk until *end* is set."""
    samples = []
    while not end.is_set():
        sample = allocated(path)
        if sample is not None:
            samples.append(sample)
        time.sleep(LOOK_S)
    answer.put(samples)


def connect(backend: str) -> Any:
    from mooncake.store import MooncakeDistributedStore

    at = settings(f"/etc/kv/{backend}")
    # Under a name of its own: the leader keeps that of one that was killed.
    store = MooncakeDistributedStore()
    leader, metadata = f"127.0.0.1:{at['RPC_PORT']}", f"http://127.0.0.1:{at['METADATA_PORT']}/metadata"
    code = store.setup(f"127.0.0.1:{24000 + os.getpid() % 8000}", metadata, 0, 16 * MIB, "tcp", "", leader)
    if code:
        sys.exit(f"values: the leader of {backend} does not let it in: {code}")
    return store


def put(backend: str, first: int, count: int, seconds: float, pause: float) -> dict[str, Any]:
    path = settings(f"/etc/kv/{backend}.member")["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"]
    end, answer = multiprocessing.Event(), multiprocessing.Queue()
    process = multiprocessing.Process(target=look, args=(path, end, answer), daemon=True)
    process.start()
    store = connect(backend)
    began = time.monotonic()
    accepted, refused, given_up = 0, 0, 0
    for number in range(first, first + count):
        key = key_of(backend, number)
        value, limit = value_of(key), time.monotonic() + seconds
        while store.put(key, value) and time.monotonic() < limit:
            refused += 1
            time.sleep(0.1)
        if time.monotonic() < limit:
            accepted += 1
        else:
            given_up += 1
        if given_up == 2:
            break
        time.sleep(pause)
    took = time.monotonic() - began
    time.sleep(2)  # heartbeats, in which the rest is written
    end.set()
    samples = answer.get()
    process.join()
    store.close()
    return {
        "accepted": accepted,
        "refused": refused,
        "given_up": given_up,
        "seconds": round(took, 1),
        "samples": len(samples),
        "peak": max(samples),
        "above_high": sum(sample > 90 * MIB for sample in samples),
    }


def get(backend: str, first: int, count: int) -> dict[str, Any]:
    store = connect(backend)
    found = {"right": 0, "wrong": 0, "missing": 0}
    for number in range(first, first + count):
        key = key_of(backend, number)
        value = store.get(key)
        found["missing" if not value else "right" if bytes(value) == value_of(key) else "wrong"] += 1
    store.close()
    return found


def main(verb: str, backend: str, first: str, count: str, seconds: str = "10", pause: str = "0") -> None:
    if verb == "put":
        found = put(backend, int(first), int(count), float(seconds), float(pause))
    else:
        found = get(backend, int(first), int(count))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
