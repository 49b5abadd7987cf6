# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs playbooks of the collection over hosts that only seem to be some, with stand-ins for its modules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
"""The variables of a host that answers."""
AWAY = {"ansible_connection": "ssh", "ansible_ssh_executable": "/bin/false", "ansible_pipelining": False}
"""Of one that does not: whoever opens a connection fails, and is not taken for a module that did."""


class Played:
    """How a playbook ended, and what it said."""

    def __init__(self, status: int, output: str, asked: list[str]) -> None:
        self.status = status
        self.output = output
        self.asked = asked
        """What stand-ins have noted."""
        found = re.findall(r"^fatal: \[(\S+)\]: (\S+) => (\{.*\})$", output, re.MULTILINE)
        self._fatal = [(host, kind, str(json.loads(said)["msg"])) for host, kind, said in found]

    @property
    def failures(self) -> list[str]:
        """All messages, of hosts out of reach too."""
        return [message for _host, _kind, message in self._fatal]

    @property
    def failed(self) -> dict[str, str]:
        """The last message of each host, which is one line."""
        last = {host: message for host, _kind, message in self._fatal}
        assert not any("\n" in message for message in last.values()), last
        return last

    @property
    def refusal(self) -> str:
        """The only message that is not of a host out of reach."""
        (message,) = [message for _host, kind, message in self._fatal if kind == "FAILED!"]
        return message

    @property
    def stats(self) -> dict[str, Any]:
        """What the next job of a workflow is told; nothing when there is none."""
        if "CUSTOM STATS:" not in self.output:
            return {}
        text = self.output.split("CUSTOM STATS:", 1)[1].split("RUN:", 1)[1]
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text.lstrip())[0]  # warnings may follow
        return found

    @property
    def lines(self) -> list[str]:
        """What is shown, without the marks of a list."""
        return [line.strip(' ",') for line in self.output.splitlines()]

    def table(self, title: str) -> list[str]:
        """Return the lines of the list that begins with *title*."""
        lines = [line.strip().strip(",") for line in self.output.splitlines()]
        first = next(number for number, line in enumerate(lines) if line.startswith(f'"{title}'))
        end = next(number for number in range(first, len(lines)) if lines[number] == "]")
        return [json.loads(line) for line in lines[first:end]]


class Lab:
    """A home with the collection, an inventory, and each host's own directory for temporary files.

    Stand-ins find in it what they are to answer, ``answers.json``, and note in ``asked`` what they were asked.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        collection = home / "collections/ansible_collections/stowage/host"
        self._modules = collection / "plugins/modules"
        self._modules.mkdir(parents=True)
        for directory in (".", "plugins", "plugins/modules"):
            for path in (REPOSITORY / directory).iterdir():
                if path.name not in ("plugins", "modules"):
                    (collection / path.relative_to(REPOSITORY)).symlink_to(path)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(home / "collections"),
            "ANSIBLE_FORKS": "20",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_NOCOLOR": "true",
            "ANSIBLE_PIPELINING": "true",
            "ANSIBLE_SHOW_CUSTOM_STATS": "true",
        }

    def stand_in(self, module: str, program: str) -> None:
        """Have another program instead of a module. It knows its host by the directory for temporary files."""
        path = self._modules / f"{module}.py"
        path.unlink()
        path.write_text(program)

    def play(
        self,
        playbook: str,
        *arguments: str,
        hosts: Mapping[str, Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> Played:
        """Run a playbook over hosts with their variables.

        :param playbook: one of the collection's, or a file in the home
        :param variables: as AWX gives those of a job
        :param answers: for the stand-ins, by host
        """
        (self.home / "answers.json").write_text(json.dumps(answers or {}))
        asked = self.home / "asked"
        asked.write_text("")
        known = {name: {"ansible_remote_tmp": str(self.home / name), **of_it} for name, of_it in hosts.items()}
        (self.home / "inventory.json").write_text(json.dumps({"all": {"hosts": known}}))
        name = playbook if playbook.endswith(".yml") else f"stowage.host.{playbook}"
        command = [sys.executable, "-m", "ansible", "playbook", name, "-i", "inventory.json"]
        done = subprocess.run(
            [*command, "-e", json.dumps(variables or {}), *arguments],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        return Played(done.returncode, done.stdout + done.stderr, asked.read_text().splitlines())
