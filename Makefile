# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.build/collections
PYTHON := .venv/bin/python
COLLECTION := .build/collections/ansible_collections/stowage/host

.PHONY: help
help: ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: venv
venv: .venv/.stamp $(COLLECTION) ## Make .venv with the pinned tools, and .build/collections for playbooks

.venv/.stamp: requirements/test.txt tests/gates/venv.sh
	@tests/gates/venv.sh .venv requirements/test.txt

$(COLLECTION):
	@mkdir -p $(@D)
	@ln -sfn $(CURDIR) $@

-include tests/lab/lab.mk
-include tests/bench/bench.mk
