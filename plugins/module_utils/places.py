# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where Stowage keeps its own files on a host."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Places:
    """The three directories of Stowage: declared state, observed state, and what is true until reboot only."""

    etc: str = "/etc/stowage"
    var: str = "/var/lib/stowage"
    run: str = "/run/stowage"

    @classmethod
    def under(cls, prefix: str) -> Places:
        """Return the same places below *prefix*, for tests and for looking at another root."""
        default = cls()
        return cls(*(os.path.join(prefix, path.lstrip("/")) for path in (default.etc, default.var, default.run)))

    @property
    def directories(self) -> tuple[str, ...]:
        """All directories that hold records."""
        return (
            self.etc,
            self.drives_dir,
            self.var,
            self.copies_dir,
            self.locations_dir,
            self.sources_dir,
            self.run_teams_dir,
            self.relocations_dir,
            self.run,
            self.state_dir,
        )

    @property
    def layout_json(self) -> str:
        return os.path.join(self.etc, "layout.json")

    @property
    def data_location_json(self) -> str:
        return os.path.join(self.etc, "data_location.json")

    @property
    def daemon_json(self) -> str:
        return os.path.join(self.etc, "daemon.json")

    @property
    def drives_dir(self) -> str:
        return os.path.join(self.etc, "drives")

    @property
    def environment(self) -> str:
        return os.path.join(self.etc, "stowage.env")

    @property
    def claims_json(self) -> str:
        return os.path.join(self.var, "claims.json")

    @property
    def former_locations_json(self) -> str:
        return os.path.join(self.var, "former_locations.json")

    @property
    def copies_dir(self) -> str:
        return os.path.join(self.var, "copies")

    @property
    def locations_dir(self) -> str:
        return os.path.join(self.var, "locations")

    @property
    def sources_dir(self) -> str:
        return os.path.join(self.var, "sources")

    @property
    def volumes_json(self) -> str:
        """The volumes that are registered, and who may read which part of them."""
        return os.path.join(self.etc, "volumes.json")

    @property
    def tiers_json(self) -> str:
        """The KV-cache backends, as declared."""
        return os.path.join(self.etc, "tiers.json")

    @property
    def tiers_found_json(self) -> str:
        """What was found when their tiers were claimed."""
        return os.path.join(self.var, "tiers.json")

    @property
    def runs_json(self) -> str:
        return os.path.join(self.var, "runs.json")

    @property
    def run_teams_dir(self) -> str:
        """The stamps of runs, a file for each user."""
        return os.path.join(self.var, "run_teams")

    @property
    def relocations_dir(self) -> str:
        """What is known of moved locations, and backups of metadata from before each move."""
        return os.path.join(self.var, "relocations")

    @property
    def accounts_json(self) -> str:
        """Whose the space is, as last measured."""
        return os.path.join(self.var, "accounts.json")

    @property
    def events(self) -> str:
        return os.path.join(self.var, "events.jsonl")

    @property
    def holds_json(self) -> str:
        """What holds all jobs of this host because somebody said so."""
        return os.path.join(self.var, "holds.json")

    @property
    def gate(self) -> str:
        """Whether jobs may start, as text for whoever reads nothing else."""
        return os.path.join(self.run, "gate")

    @property
    def pins_dir(self) -> str:
        return os.path.join(self.run, "pins")

    @property
    def state_dir(self) -> str:
        return os.path.join(self.run, "state")

    @property
    def use_socket(self) -> str:
        return os.path.join(self.run, "use")

    @property
    def host_lock(self) -> str:
        return os.path.join(self.run, "host.lock")

    @property
    def daemon_lock(self) -> str:
        """Held by the daemon while it runs."""
        return os.path.join(self.run, "daemon.lock")
