#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# usage: venv.sh DIRECTORY REQUIREMENTS
# Makes a virtual environment that holds exactly the pinned REQUIREMENTS, unless it already does.
set -euo pipefail

directory=$1
requirements=$2
here=$(dirname "$0")

find_python() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        # Run, not looked up: a version manager's shim is found and then refuses.
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    return 1
}

exec 9>"$directory.lock"
flock 9

wanted=$(sha256sum <"$requirements")
if [[ -x $directory/bin/python && "$(cat "$directory/.stamp" 2>/dev/null)" == "$wanted" ]]; then
    touch "$directory/.stamp"
    exit
fi

if ! python=$(find_python); then
    "$here/packages.sh" python3 python3-venv
    python=$(find_python) || {
        echo "venv: no Python 3.11 or newer on this machine; install one as python3, python3.12 or python3.13" >&2
        exit 1
    }
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$here/packages.sh" python3-venv
fi

echo "venv: making $directory with $("$python" --version)"
"$python" -m venv --clear "$directory"
"$directory/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --requirement "$requirements" </dev/null
"$directory/bin/python" -m pip check --disable-pip-version-check >/dev/null
echo "$wanted" >"$directory/.stamp"
