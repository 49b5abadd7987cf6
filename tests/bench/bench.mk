# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
.PHONY: bench
bench: venv ## Measure against du, rm and other peers; BENCH="--quick measure" for a part of it
	@$(PYTHON) tests/bench/run.py $(BENCH)
