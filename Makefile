# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.build/collections
PYTHON := .venv/bin/python
LINKS := .build/collections/ansible_collections/stowage/host .build/types/stowage_core .build/types/stowaged

.PHONY: help
help: ## List the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: test
test: venv ## Every gate, then one line: N passed, N failed
	@$(PYTHON) tests/gates/run.py lint unit playbooks python39 sanity importer molecule

.PHONY: lint unit playbooks python39 sanity importer molecule
lint: venv ## Style, types, ansible-lint, changelog, and the tree's own rules
unit: venv ## Unit tests, in seconds
playbooks: venv ## What playbooks refuse, show and hand on
python39: venv ## Unit tests with the oldest Python of a host
sanity: venv ## ansible-test sanity on the oldest and the newest core
importer: venv ## What Ansible Galaxy checks when it imports the collection
molecule: venv ## Every molecule scenario, on real hosts
lint unit playbooks python39 sanity importer molecule:
	@$(PYTHON) tests/gates/run.py $@

.PHONY: venv
venv: .venv/.stamp $(LINKS) ## Make .venv with the pinned tools, and the links in .build

.venv/.stamp: requirements/test.txt tests/gates/venv.sh
	@tests/gates/venv.sh .venv requirements/test.txt

# The repository under the names that Ansible and mypy look for. ansible-test refuses links inside the tree.
.build/collections/ansible_collections/stowage/host: TO := .
.build/types/stowage_core: TO := plugins/module_utils
.build/types/stowaged: TO := daemon/stowaged
$(LINKS):
	@mkdir -p $(@D)
	@ln -sfnr $(CURDIR)/$(TO) $@

.PHONY: requirements
requirements: ## Pin the newest releases of what requirements/*.in name
	@tests/gates/requirements.sh

.PHONY: clean
clean: ## Remove .venv and .build
	@rm -rf .venv .venv.lock .build .ansible

-include tests/lab/lab.mk
-include tests/bench/bench.mk
