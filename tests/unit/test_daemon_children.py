# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stowage_core.errors import StowageError
from stowaged import writer as writing
from stowaged.children import Body, Children, Ending, Send, next_order
from stowaged.loop import Loop
from stowaged.writer import Writer


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def run(loop: Loop, body: Body, silence_s: float = 5.0) -> tuple[list[Any], Ending]:
    """Run one child to its end."""
    children = Children(loop)
    messages: list[Any] = []
    endings: list[Ending] = []
    children.start("one", body, messages.append, endings.append, silence_s)
    deadline = time.monotonic() + 10
    while not endings and time.monotonic() < deadline:
        loop.later(0.2, lambda: None)
        loop.run_once()
    children.kill_all(1)
    return messages, endings[0]


def refused(_send: Send) -> None:
    raise StowageError("one line")


def denied(_send: Send) -> None:
    raise PermissionError(13, "Permission denied", "/a\nb")


def crashed(_send: Send) -> None:
    raise ValueError("a bug")


def killed(_send: Send) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (lambda send: None, ""),
        (refused, "one line"),
        (denied, "/a\\nb: Permission denied"),
        (crashed, "one: ended with exit status 1; its messages are in the journal"),
        (killed, "one: ended with signal 9; its messages are in the journal"),
    ],
)
def test_how_a_child_ends(loop: Loop, body: Body, error: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(loop, body) == ([], Ending(error))


def test_a_child_that_is_told_to_end_sends_what_it_has_done(loop: Loop) -> None:
    def body(send: Send) -> None:
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
        send({"step": "began"})
        while not told:
            time.sleep(0.01)
        send({"step": "ended"})

    children = Children(loop)
    messages: list[Any] = []
    endings: list[Ending] = []

    def take(message: Any) -> None:
        messages.append(message["step"])
        children.end("one", "not wanted any more")

    children.start("one", body, take, endings.append, 5.0)
    while not endings:
        loop.run_once()
    assert (messages, endings) == (["began", "ended"], [Ending("not wanted any more")])


def test_messages_arrive_whole_and_in_order(loop: Loop) -> None:
    def body(send: Send) -> None:
        signal.signal(signal.SIGALRM, lambda _number, _frame: send({}))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for number in range(100):
            send({"number": number, "text": "x" * 100_000})

    messages, ending = run(loop, body)
    assert [message["number"] for message in messages] == list(range(100)) and ending == Ending()


def test_a_silent_child_is_given_up_and_one_that_shows_life_is_not(loop: Loop) -> None:
    def silent(_send: Send) -> None:
        time.sleep(60)

    def alive(send: Send) -> None:
        for _round in range(6):
            time.sleep(0.1)
            send({})

    start = time.monotonic()
    assert run(loop, silent, 0.3)[1].silent and time.monotonic() - start < 2
    assert run(loop, alive, 0.3) == ([], Ending())


def test_there_is_at_most_one_of_a_key(loop: Loop) -> None:
    children = Children(loop)
    children.start("one", lambda send: time.sleep(60), print, print, 60)
    assert children.running("one") and not children.left_behind("one")
    with pytest.raises(ValueError, match="one"):
        children.start("one", lambda send: None, print, print, 60)
    start = time.monotonic()
    children.kill_all(1)
    assert time.monotonic() - start < 0.5


def test_a_child_has_nothing_of_its_parent_open(loop: Loop) -> None:
    def body(send: Send) -> None:
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2)
        send({"open": [os.readlink(link) for link in links if os.path.lexists(link)]})

    with open(os.devnull, "rb"):
        messages, _ending = run(loop, body)
    assert os.devnull not in messages[0]["open"]
    assert len([path for path in messages[0]["open"] if path.startswith("pipe:")]) == 1


def test_timers_and_signals(loop: Loop) -> None:
    seen: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: seen.append("signal"))
    loop.later(0.02, lambda: seen.append("second"))
    loop.later(0.01, lambda: seen.append("first"))
    loop.later(0.015, lambda: seen.append("cancelled")).cancel()
    loop.later(0.05, loop.stop)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run()
    assert seen == ["signal", "first", "second"]


def until(loop: Loop, true: Callable[[], object]) -> None:
    """Run the loop until something is true."""
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        loop.later(0.2, lambda: None)
        loop.run_once()


def obedient(send: Send, orders: int) -> None:
    while (order := next_order(orders)) is not None:
        time.sleep(60 if order == b"hang" else 0)
        send({"size": len(order), "last": order[-1:].decode()})


def test_one_that_is_kept_carries_out_orders_and_is_silent_between_them(loop: Loop) -> None:
    children = Children(loop)
    messages: list[Any] = []
    endings: list[Ending] = []
    children.keep("one", obedient, messages.append, endings.append)
    with pytest.raises(ValueError, match="one"):
        children.keep("one", obedient, messages.append, endings.append)
    large = bytes(5_000_000) + b"a"  # more than a pipe takes at once
    children.order("one", large, 5)
    children.order("one", b"b", 5)
    until(loop, lambda: len(messages) == 2)
    assert messages == [{"size": len(large), "last": "a"}, {"size": 1, "last": "b"}]
    children.rest("one")
    children.order("one", b"c", 0.3)
    until(loop, lambda: len(messages) == 3)
    children.rest("one")
    waited: list[bool] = []
    loop.later(0.6, lambda: waited.append(True))
    until(loop, lambda: waited)
    assert children.running("one") and endings == [], "while nothing is wanted of it, it need not show life"
    children.order("one", b"hang", 0.3)
    until(loop, lambda: endings)
    assert endings == [Ending("no answer", silent=True)] and children.left_behind("one")
    until(loop, lambda: not children.running("one"))
    assert len(endings) == 1


def test_one_that_is_kept_and_dies(loop: Loop) -> None:
    def dies(_send: Send, orders: int) -> None:
        next_order(orders)
        os.kill(os.getpid(), signal.SIGKILL)

    children = Children(loop)
    endings: list[Ending] = []
    children.keep("one", dies, print, endings.append)
    children.order("one", bytes(5_000_000), 5)
    until(loop, lambda: endings)
    assert endings == [Ending("one: ended with signal 9; its messages are in the journal")]
    assert not children.running("one")
    children.keep("one", obedient, print, endings.append)
    children.order("one", bytes(5_000_000), 5)
    children.kill_all(1)
    assert not children.running("one") and len(endings) == 1


def test_one_that_is_stopped_says_why(loop: Loop) -> None:
    children = Children(loop)
    endings: list[Ending] = []
    children.start("one", lambda _send: time.sleep(60), lambda _message: None, endings.append, 60)
    children.stop("another", "no child of that name")
    children.stop("one", "not wanted any more")
    deadline = time.monotonic() + 10
    while not endings and time.monotonic() < deadline:
        loop.run_once()
    assert endings == [Ending("not wanted any more")] and not children.running("one")


def test_writings_wait_for_each_other(loop: Loop, tmp_path: Path) -> None:
    said: list[str] = []
    children = Children(loop)
    writer = Writer(children, said.append)

    def write(text: str) -> str:
        time.sleep(0.05)
        with open(tmp_path / "written", "a", encoding="ascii") as stream:
            stream.write(text)
        return "full" if text == "b" else ""

    for text in "abc":
        writer.do(partial(write, text))
    deadline = time.monotonic() + 10
    while children.running(writing.KEY) and time.monotonic() < deadline:
        loop.run_once()
    assert (tmp_path / "written").read_text() == "abc" and said == ["full"]
