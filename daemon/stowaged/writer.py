# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be written and nobody waits for, such as events: in a child, one thing after the other."""

from __future__ import annotations

from collections import deque
from typing import Callable

from .children import Children, Ending, Message, Send

KEY = "write"
SILENCE_S = 30.0
_MOST = 1000

Writing = Callable[[], str]
"""Writes something and returns what went wrong in one line, or an empty text."""


class Writer:
    """Keeps what is to be written while another child still writes, or waits for a dead disk."""

    def __init__(self, children: Children, say: Callable[[str], None]) -> None:
        self._children = children
        self._say = say
        self._waiting: deque[Writing] = deque(maxlen=_MOST)

    def do(self, writing: Writing) -> None:
        self._waiting.append(writing)
        self._start()

    def _start(self) -> None:
        if not self._waiting or self._children.running(KEY):
            return
        now = list(self._waiting)
        self._waiting.clear()

        def body(send: Send) -> None:
            for writing in now:
                send({"wrong": writing()})

        self._children.start(KEY, body, self._take, self._end, SILENCE_S)

    def _take(self, message: Message) -> None:
        if message["wrong"]:
            self._say(message["wrong"])

    def _end(self, ending: Ending) -> None:
        if ending.error:
            self._say(f"writing to disk: {ending.error}; the rest of it is lost")
        self._start()
