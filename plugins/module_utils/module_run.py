# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How every module of Stowage runs: a body that notes differences, and one way to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from .differences import Differences
from .errors import PartlyFailed, StowageError, one_line

Body = Callable[[AnsibleModule, Differences], Mapping[str, Any]]


def run(module: AnsibleModule, body: Body) -> None:
    """Call *body* and exit with ``changed``, ``diff``, ``actions`` and the results that it returns.

    A failure, refused or met half way, carries the actions done before it.
    """
    differences = Differences(module.check_mode)
    try:
        results = body(module, differences)
    except PartlyFailed as error:
        module.fail_json(msg=str(error), **_done(differences), **error.results)
    except (StowageError, OSError) as error:
        module.fail_json(msg=one_line(error, str(module._name)), **_done(differences))
    else:
        module.exit_json(changed=differences.changed, diff=differences.diff(), actions=differences.actions, **results)


def _done(differences: Differences) -> Mapping[str, Any]:
    actions = [] if differences.check_mode else differences.actions
    return {"changed": bool(actions), "actions": actions}
