# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes over the connection between who removes and who looks."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import StowageError
from stowage_core.use.child import NoAnswerError, answer_from, progress, tell_answer
from stowage_core.use.look import Subject
from stowaged import use_service

NAMES = st.text(max_size=20)
PATHS = st.binary(max_size=200).map(os.fsdecode)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(st.lists(st.tuples(NAMES, PATHS, PATHS), min_size=1, max_size=4))
def test_what_is_sent_is_received(copies: list[tuple[str, str, str]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as stack:
        sent = []
        for name, place, path in copies:
            fd = os.open("/", os.O_RDONLY)
            stack.callback(os.close, fd)
            sent.append(Subject(name, fd, "8:1", place, (path,), (path, place), (path,), (place, name)))
        for subject in sent:
            use_service._send(ours, subject)
        ours.sendall(b"\n")
        found, own = use_service._subjects(*use_service._request(theirs))
        for one in found:
            stack.callback(os.close, one.fd)
        assert own == [subject.fd for subject in sent]
        assert not {one.fd for one in found} & set(own)
        assert [replace(one, fd=-1) for one in found] == [replace(one, fd=-1) for one in sent]


def test_each_copy_keeps_its_own_descriptor(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    fds = []
    for number in range(40):
        (tmp_path / str(number)).mkdir()
        fds.append(os.open(tmp_path / str(number), os.O_RDONLY))
        use_service._send(ends[0], Subject(str(number), fds[-1], "8:1", "/", (), ()))
    ends[0].sendall(b"\n")
    found, _own = use_service._subjects(*use_service._request(ends[1]))
    try:
        assert [os.readlink(f"/proc/self/fd/{one.fd}") for one in found] == [str(tmp_path / one.name) for one in found]
    finally:
        for fd in [*fds, *(one.fd for one in found)]:
            os.close(fd)


def test_a_request_without_an_end(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(b"{}\n")
    ends[0].close()
    with pytest.raises(StowageError, match="has no end"):
        use_service._subjects(*use_service._request(ends[1]))


def test_a_request_without_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(json.dumps({"name": "ml.a"}).encode() + b"\n\n")
    with pytest.raises(StowageError, match="0 descriptors came with 1 copies"):
        use_service._subjects(*use_service._request(ends[1]))


@pytest.mark.parametrize("kept", [object(), OSError(13, "Permission denied", "/x"), StowageError("the rule")])
def test_an_answer_with_progress_before_it(ends: tuple[socket.socket, socket.socket], kept: object) -> None:
    def body() -> dict[str, list[str]]:
        progress()
        if isinstance(kept, Exception):
            raise kept
        return {"ml.a": []}

    tell_answer(ends[1].fileno(), body)
    if isinstance(kept, Exception):
        with pytest.raises(NoAnswerError, match=r"^(/x: Permission denied|the rule)$"):
            answer_from(ends[0].fileno(), 1.0, remedy="; look")
    else:
        assert answer_from(ends[0].fileno(), 1.0) == {"ml.a": []}


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ({"ml.a": [], "ml.b": ["used"]}, True),
        ({"ml.a": []}, False),
        ({"ml.a": [], "ml.b": [], "ml.c": []}, False),
        ({"ml.a": [], "ml.b": [1]}, False),
        ({"ml.a": [], "ml.b": "used"}, False),
        ([], False),
        (None, False),
    ],
)
def test_which_answers_count(answer: Any, accepted: bool) -> None:
    subjects = [Subject(name, -1, "8:1", "/", (), ()) for name in ("ml.a", "ml.b")]
    assert use_service._answers(answer, subjects) is accepted
