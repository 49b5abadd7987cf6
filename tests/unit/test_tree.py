# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tree's own rules: what no linter knows."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
LICENSE = {"# Copyright: Stowage contributors", "# SPDX-License-Identifier: GPL-3.0-or-later"}
TARGET_SIDE = ("plugins/module_utils", "plugins/modules")
INCLUDES = ("include_tasks", "import_tasks")


def files() -> list[Path]:
    """What git tracks, or would track with the next commit."""
    listing = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=REPOSITORY)
    paths = (REPOSITORY / name for name in listing.decode().split("\0") if name)
    return [path for path in paths if path.is_symlink() or path.exists()]


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def target_side() -> list[str]:
    return [name_of(path) for top in TARGET_SIDE for path in sorted((REPOSITORY / top).rglob("*.py"))]


def roles() -> list[str]:
    return sorted(path.name for path in (REPOSITORY / "roles").glob("*") if path.is_dir())


def tasks_of(document: Any) -> Iterator[dict[str, Any]]:
    """Every task of a tasks file or playbook, also those in blocks."""
    for item in document or []:
        yield item
        for key in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from tasks_of(item.get(key))


def included(task: dict[str, Any]) -> Iterator[str]:
    for word in INCLUDES:
        value = task.get(f"ansible.builtin.{word}")
        if value is not None:
            yield Path(value["file"] if isinstance(value, dict) else value).stem


def specs_of(role: str) -> dict[str, Any]:
    path = REPOSITORY / f"roles/{role}/meta/argument_specs.yml"
    return yaml.safe_load(path.read_text())["argument_specs"] if path.exists() else {}


def unguarded_imports(tree: ast.Module) -> Iterator[str]:
    """Absolute imports outside a try that catches ImportError."""
    guarded = {
        id(node)
        for attempt in ast.walk(tree)
        if isinstance(attempt, ast.Try) and any("ImportError" in ast.dump(h.type) for h in attempt.handlers if h.type)
        for statement in attempt.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def test_every_step_of_a_scenario_has_its_playbook() -> None:
    """Else molecule leaves the step out, and the scenario passes."""
    missing = []
    for path in sorted(REPOSITORY.glob("molecule/*/molecule.yml")):
        for step in yaml.safe_load(path.read_text())["scenario"]["test_sequence"]:
            action, *named = step.split()
            if action in ("create", "destroy"):
                continue  # shared by all
            usual = {"idempotence": "converge.yml"}.get(action, f"{action}.yml")
            missing += [name for name in (usual, *named) if not (path.parent / name).is_file()]
    assert missing == []


def test_no_link_is_in_the_tree() -> None:
    # ansible-test and Galaxy refuse links to directories, and a link to a file says the same thing twice.
    assert [name_of(path) for path in files() if path.is_symlink()] == []


def test_every_python_file_names_its_license() -> None:
    python = [path for path in files() if path.suffix == ".py" and path.stat().st_size]
    assert [name_of(path) for path in python if not set(path.read_text().splitlines()[:4]) >= LICENSE] == []


def test_every_plugin_has_the_same_license_header() -> None:
    # The middle line is what ansible-test looks for in modules.
    header = [
        "# Copyright: Stowage contributors",
        "# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)",
        "# SPDX-License-Identifier: GPL-3.0-or-later",
    ]
    plugins = [path for path in (REPOSITORY / "plugins").rglob("*.py") if path.stat().st_size]
    first = {path: path.read_text().removeprefix("#!/usr/bin/python\n").splitlines()[:3] for path in plugins}
    assert [name_of(path) for path, lines in first.items() if lines != header] == []


def test_sanity_ignores_nothing() -> None:
    ignores = (REPOSITORY / "tests/sanity").glob("ignore*")
    assert [name_of(path) for path in ignores if path.read_text().strip()] == []


def test_every_requirement_is_pinned() -> None:
    lines = [line for path in (REPOSITORY / "requirements").glob("*.txt") for line in path.read_text().splitlines()]
    assert [line for line in lines if "==" not in line and not line.startswith("#")] == []


def test_every_module_has_a_test_cycle() -> None:
    modules = [path.stem for path in (REPOSITORY / "plugins/modules").glob("*.py") if path.stem != "__init__"]
    cases = REPOSITORY / "molecule/modules/cases"
    assert [name for name in sorted(modules) if not (cases / f"{name}.yml").is_file()] == [], f"no case file in {cases}"


@pytest.mark.parametrize("name", target_side())
def test_target_side_needs_only_the_standard_library(name: str) -> None:
    imported = {module.split(".")[0] for module in unguarded_imports(ast.parse((REPOSITORY / name).read_text()))}
    # The daemon shares the domain, and has no Ansible: only how a module runs may use it.
    ansible = {"ansible"} if not name.startswith("plugins/module_utils/") or name.endswith("/module_run.py") else set()
    assert imported - {*sys.stdlib_module_names, *ansible, "ansible_collections"} == set()
    assert "subprocess" not in imported, "modules run commands with module.run_command"


@pytest.mark.parametrize("role", roles())
def test_every_entry_point_of_a_role_has_an_argument_spec(role: str) -> None:
    # Once tasks_from names an entry point without a specification, no argument of the role is checked.
    tasks = {path.stem: path for path in (REPOSITORY / f"roles/{role}/tasks").glob("*.yml")}
    parts = {
        part
        for path in tasks.values()
        for task in tasks_of(yaml.safe_load(path.read_text()))
        for part in included(task)
    }
    assert {name for name in parts if "{{" in name} == set(), "name the included file, so that it can be found"
    # A part may be an entry point too.
    assert set(tasks) - parts <= set(specs_of(role)) <= set(tasks)


def test_playbooks_use_entry_points_that_exist() -> None:
    missing = []
    for path in sorted((REPOSITORY / "playbooks").glob("*.yml")):
        for task in tasks_of(yaml.safe_load(path.read_text())):
            for word in ("include_role", "import_role"):
                call = task.get(f"ansible.builtin.{word}") or {}
                role = call.get("name", "").split(".")[-1]
                if call and call.get("tasks_from", "main").removesuffix(".yml") not in specs_of(role):
                    missing.append(f"{path.name}: {role} {call.get('tasks_from', 'main')}")
    assert missing == []
