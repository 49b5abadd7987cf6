# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What training containers are told of the framework caches, and of which layouts filters can tell."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.filter.framework_environment import framework_environment
from stowage_core.layout.rules import Layout, resolve
from stowage_core.renderings.framework_caches import environment, private_home

VARIABLES = {"host_storage_root": "/srv/tuneplane", "host_environment_prefix": "TUNEPLANE_"}


def reported(layout: Layout, prefix: str = "STOWAGE_") -> dict[str, Any]:
    """Return a layout as facts have it."""
    locations = {name: {"path": path, "override": name in layout.overridden} for name, path in layout.locations.items()}
    return {
        "root": layout.root,
        "volume_root": layout.volume_root,
        "environment_prefix": prefix,
        "protected_paths": [],
        "locations": locations,
    }


def test_tuneplanes_container_environment() -> None:
    assert framework_environment(VARIABLES) == {
        "HF_HOME": "/tmp/tuneplane-hf",
        "HF_HUB_CACHE": "/srv/tuneplane/cache/hf/hub",
        "HF_DATASETS_CACHE": "/srv/tuneplane/cache/hf/datasets",
        "MODELSCOPE_CACHE": "/srv/tuneplane/cache/modelscope",
    }


def test_caches_where_overrides_have_put_them() -> None:
    layout = resolve("/srv", {"cache": "/mnt/cache", "modelscope_cache": "/mnt/ms"})
    found = environment(layout, "STOWAGE_")
    assert found["HF_HUB_CACHE"] == "/mnt/cache/hf/hub" and found["MODELSCOPE_CACHE"] == "/mnt/ms"
    # Nothing that a framework keeps for one user alone is below a cache.
    assert not any(found["HF_HOME"].startswith(path) for path in layout.named().values())


@pytest.mark.parametrize(
    ("prefix", "home"), [("STOWAGE_", "/tmp/stowage-hf"), ("MY_SITE_", "/tmp/my_site-hf"), ("A__", "/tmp/a-hf")]
)
def test_the_private_home_has_the_name_of_the_settings(prefix: str, home: str) -> None:
    assert private_home(prefix) == home


def test_every_form_of_a_layout_says_the_same() -> None:
    layout = resolve("/srv/s", {"runs": "/mnt/runs"}, "/volumes")
    variables = {
        "host_storage_root": "/srv/s/",
        "host_storage_overrides": {"runs": {"path": "/mnt/runs", "require_mount": True}, "cache": ""},
        "host_volume_root": "/volumes",
    }
    assert framework_environment(reported(layout)) == framework_environment(variables)


def test_nodes_that_have_the_root_elsewhere() -> None:
    found = framework_environment({**VARIABLES, "host_storage_overrides": {"modelscope_cache": "/mnt/ms"}}, "/lustre/t")
    assert found["HF_HUB_CACHE"] == "/lustre/t/cache/hf/hub"
    assert (found["MODELSCOPE_CACHE"], found["HF_HOME"]) == ("/mnt/ms", "/tmp/tuneplane-hf")


class Undefined(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise UndefinedError("'nowhere' is undefined")


@pytest.mark.parametrize(
    ("value", "refused"),
    [
        (None, "layout: the input is none; give the layout in the facts"),
        ({"ansible_host": "a"}, "layout: the input is none; give the layout in the facts"),
        ({"host_storage_root": "relative"}, "root: 'relative' must be absolute"),
        (Undefined(host_storage_root=""), "layout: 'nowhere' is undefined; correct the variables"),
        ({**VARIABLES, "host_environment_prefix": "small"}, "environment_prefix: 'small' must be capital letters"),
        ({**VARIABLES, "host_protected_paths": ["/srv"]}, "protected_paths: /srv contains runs, /srv/tuneplane/runs"),
        ({"locations": {"runs": "/runs"}}, "layout: the input is none ("),
        (
            {**reported(resolve("/srv", {})), "root": "/other"},
            "layout: its locations are not those that follow from its root and overrides",
        ),
        (
            {**VARIABLES, "host_storage_overrides": {"runs": "/srv/tuneplane/state"}},
            "runs: /srv/tuneplane/state is the same directory as state",
        ),
    ],
)
def test_what_is_no_layout(value: Any, refused: str) -> None:
    with pytest.raises(AnsibleFilterError) as error:
        framework_environment(value)
    assert str(error.value).startswith(f"framework_environment: {refused}")
