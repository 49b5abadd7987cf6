# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The locks of what lies aside: of one thing each, however many there are, and gone with whoever holds them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stowage_core.errors import StowageError
from stowage_core.locks import aside_lock, runs_lock, try_aside_lock
from stowage_core.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


def is_free(places: Places, key: str) -> bool:
    with try_aside_lock(places, key) as mine:
        return mine


def test_each_is_of_one_thing(places: Places) -> None:
    with aside_lock(places, "one"), runs_lock(places, timeout=0):
        assert not is_free(places, "one"), "also not for another file of the same process"
        assert not is_free(places, "one"), "closing that has not let go"
        assert all(is_free(places, f"other-{number}") for number in range(500))
        message = "one: another process removes or makes that run for 0 s; try again"
        with pytest.raises(StowageError, match=message), aside_lock(places, "one", timeout=0):
            raise AssertionError("it was held")
    assert is_free(places, "one")
    assert os.stat(os.path.join(places.run, "aside.lock")).st_size == 0, "nothing is left behind"


def test_it_goes_with_its_holder(places: Places) -> None:
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with aside_lock(places, "one"):
            os.write(told, b".")
            signal.pause()
        os._exit(1)
    os.read(ready, 1)
    assert not is_free(places, "one")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert is_free(places, "one")
