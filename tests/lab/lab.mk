# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Throwaway hosts; see docs/lab.md.

.PHONY: site site-down
site: venv ## Roll Stowage out to two throwaway hosts, or to yours: make site INVENTORY=path
	@$(PYTHON) tests/lab/lab.py site $(if $(INVENTORY),--inventory "$(INVENTORY)")
site-down: ## Take the throwaway hosts of make site down
	@python3 tests/lab/lab.py down

.PHONY: host-test
host-test: venv ## Run tests/host on hosts that stay up: make host-test K=expression
	@STOWAGE_HOST_TESTS="$(K)" molecule converge --scenario-name host
	@STOWAGE_HOST_TESTS="$(K)" molecule verify --scenario-name host
