# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading what is declared, what was last measured of it, and what is held, in a child: errors stay there."""

from __future__ import annotations

import base64
import pickle
from typing import Any, Callable

from stowage_core.gate import holds
from stowage_core.gate.judgement import Hold
from stowage_core.places import Places

from . import declared
from .children import Children, Ending, Message, Send
from .declared import Declared
from .last_measured import last_accounts, last_measured

KEY = "read"
ACCOUNTS = "accounts"
SILENCE_S = 5.0

Recorded = dict[str, dict[str, Any]]
"""The last measurements that are recorded, by object; when the daemon is started with the accounts made of them."""


class Reader:
    """Looks whether anything has changed, and reads it then; one round at a time."""

    def __init__(
        self,
        places: Places,
        children: Children,
        take: Callable[[Declared, Recorded], None],
        take_holds: Callable[[list[Hold]], None],
    ) -> None:
        self._places = places
        self._children = children
        self._take = take
        self._take_holds = take_holds
        self._stamp: Any = None
        self.busy = False

    def start(self, host: str, say: Callable[[str], None], done: Callable[[str], None]) -> None:
        """Take on what has changed, then call *done* with what was wrong: the earlier stays in force then."""
        no_answer = f"{self._places.etc}: the disk of what is declared does not answer"
        if self._children.running(KEY):
            done(no_answer)
            return
        self.busy = True
        before = self._stamp

        def body(send: Send) -> None:
            # First, and each time: whoever holds jobs is heard also while what is declared cannot be read.
            send({"holds": [hold.to_json() for hold in holds.declared(self._places)]})
            stamp = (declared.stamp(self._places), host)
            if stamp != before:
                found = declared.load(self._places, host)
                recorded = {one.object: last_measured(self._places, one, send) for one in found.measured}
                if before is None:
                    recorded[ACCOUNTS] = last_accounts(self._places, send)
                # Only JSON goes through the pipe.
                send({"read": base64.b64encode(pickle.dumps((stamp, found, recorded))).decode("ascii")})

        def take(message: Message) -> None:
            if "say" in message:
                say(message["say"])
            elif "holds" in message:
                self._take_holds([Hold(**one) for one in message["holds"]])
            else:
                self._stamp, found, recorded = pickle.loads(base64.b64decode(message["read"]))
                self._take(found, recorded)

        def end(ending: Ending) -> None:
            self.busy = False
            done(no_answer if ending.silent else ending.error)

        self._children.start(KEY, body, take, end, SILENCE_S)
