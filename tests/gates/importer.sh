#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Builds the collection and imports it as Ansible Galaxy would; lint and sanity are gates of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$PWD/.build/importer
mkdir -p "$work"
tests/gates/venv.sh "$work/venv" requirements/importer.txt
cat >"$work/importer.cfg" <<'EOF'
[galaxy-importer]
RUN_ANSIBLE_LINT = False
RUN_ANSIBLE_TEST = False
CHECK_CHANGELOG = True
CHECK_REQUIRED_TAGS = True
REQUIRE_V1_OR_GREATER = False
EOF

rm -f "$work"/*.tar.gz
.venv/bin/ansible-galaxy collection build --force --output-path "$work" .
cd "$work"
export GALAXY_IMPORTER_CONFIG=$work/importer.cfg PATH=$work/venv/bin:$PATH
venv/bin/python -m galaxy_importer.main ./*.tar.gz 2>&1 | tee import.log
if grep -E '^(ERROR|WARNING)' import.log; then
    exit 1
fi
