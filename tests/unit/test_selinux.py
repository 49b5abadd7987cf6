# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a directory is labelled, and as what. The kernel's part is played: few machines that test have SELinux."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowage_core import selinux
from stowage_core.errors import Refusal


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """A host whose SELinux is at work, enforcing or not."""
    at = tmp_path / "selinux"
    at.mkdir()
    (at / "enforce").write_text("0")
    return at


def test_without_selinux_nothing_is_set(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setxattr", lambda *arguments: pytest.fail("it was set"))
    assert not selinux.label(directory, str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert not selinux.label(directory, str(tmp_path / "empty")), "the kernel knows SELinux, and it is disabled"


def test_with_selinux_containers_may_use_it(directory: int, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "setxattr", lambda *arguments: done.append(arguments))
    assert selinux.label(directory, str(at))
    assert done == [(directory, "security.selinux", b"system_u:object_r:container_file_t:s0\0")]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EACCES])
def test_what_the_kernel_says(directory: int, at: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "setxattr", refuse)
    if number == errno.EOPNOTSUPP:
        assert not selinux.label(directory, str(at)), "mounted with one label for all"
    elif number == errno.EINVAL:
        with pytest.raises(Refusal, match="no container_file_t; install container-selinux"):
            selinux.label(directory, str(at))
    else:
        with pytest.raises(PermissionError):
            selinux.label(directory, str(at))
