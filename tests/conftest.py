# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the tree importable under the names that it has when installed, without links in the tree.

stowage_core is plugins/module_utils, stowaged is daemon/stowaged, and the collection has its full name. A module of
module_utils is one object under both of its names, so an error raised through one is caught through the other.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[1]
COLLECTION = "ansible_collections.stowage.host"
MODULE_UTILS = COLLECTION + ".plugins.module_utils"


def add_package(name: str, directory: Path) -> None:
    """Import the package name from a directory that is called otherwise."""
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{directory}: not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def add_namespace(name: str, directories: list[str]) -> None:
    module = ModuleType(name)
    module.__path__ = directories
    sys.modules[name] = module
    parent, dot, child = name.rpartition(".")
    if dot:
        setattr(sys.modules[parent], child, module)


class SameModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a file of module_utils by its collection name as the module that it already is in stowage_core."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == MODULE_UTILS or fullname.startswith(MODULE_UTILS + "."):
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module("stowage_core" + spec.name[len(MODULE_UTILS) :])
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just put the collection's name here, and relative imports go by it.
        module.__spec__ = self.own_spec


if "stowage_core" not in sys.modules:
    add_package("stowage_core", REPOSITORY / "plugins/module_utils")
    if (REPOSITORY / "daemon/stowaged/__init__.py").exists():
        add_package("stowaged", REPOSITORY / "daemon/stowaged")
    add_namespace("ansible_collections", [])
    add_namespace("ansible_collections.stowage", [])
    add_namespace(COLLECTION, [str(REPOSITORY)])
    add_namespace(COLLECTION + ".plugins", [str(REPOSITORY / "plugins")])
    sys.meta_path.insert(0, SameModule())
