# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E402 - the documentation comes before the imports
"""The zip application of the daemon, built on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: daemon_application
author: Stowage contributors (@stowage)
short_description: Build the application of daemon, exporter and command
description:
  - Builds one file out of the collection's own sources, in a temporary directory of the controller that Ansible removes
    at the end of the run, and returns its path.
  - The same sources give the same bytes on every controller.
  - It takes no terms.
"""

EXAMPLES = r"""
- name: Install daemon, exporter and command
  ansible.builtin.copy:
    src: "{{ lookup('stowage.host.daemon_application') }}"
    dest: /usr/local/bin/stowage
    mode: "0755"
"""

RETURN = r"""
_raw:
  description: The path of the application on the controller.
  type: list
  elements: str
"""

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

COLLECTION = Path(__file__).resolve().parents[2]


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        if terms or kwargs:
            raise AnsibleError("stowage.host.daemon_application: takes no terms and no options")
        data = _build()
        path = Path(C.DEFAULT_LOCAL_TMP) / f"stowage-{hashlib.sha256(data).hexdigest()}.pyz"
        if not path.exists():
            # Other hosts' tasks may be building it too: each puts a whole file in place.
            fd, temporary = tempfile.mkstemp(dir=path.parent)
            with open(fd, "wb") as stream:
                stream.write(data)
            os.replace(temporary, path)
        return [str(path)]


def _build() -> bytes:
    builder = COLLECTION / "daemon" / "build.py"
    spec = importlib.util.spec_from_file_location("stowage_daemon_build", builder)
    if spec is None or spec.loader is None or not builder.exists():
        raise AnsibleError(f"{builder}: is missing; install the collection again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data: bytes = module.build(COLLECTION)
    return data
