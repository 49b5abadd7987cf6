# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowage-exporter``: shows what the daemon knows to the network, without any privilege.

/metrics is for Prometheus, /status is JSON, /healthz says whether the daemon is at work. Instead of serving, it can
keep a file for node_exporter's textfile collector up to date.
"""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import sys
import threading

from stowage_core import records
from stowage_core.errors import StowageError
from stowage_core.places import Places
from stowage_core.services.daemon_settings import DEFAULT_LISTEN, address_of

from .http_server import Answer, Server
from .notify import Notifier
from .pages import Pages

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
POLL_S = 1.0


def main(arguments: list[str], places: Places) -> int:
    options = _parser().parse_args(arguments)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    left_out = {kind for kind, no in (("copies", options.no_copies), ("users", options.no_users)) if no}
    pages = Pages(places, left_out)
    try:
        pages.refresh()
        if options.textfile:
            _keep_file(pages, options.textfile, stopped)
        else:
            _serve(pages, options, stopped)
    except (StowageError, OSError) as error:
        print(f"stowage-exporter: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stowage-exporter", description="Show what stowaged knows to the network.")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="ADDRESS:PORT", help="default: %(default)s")
    parser.add_argument("--certificate", metavar="FILE", help="serve TLS with this certificate (PEM)")
    parser.add_argument("--key", metavar="FILE", help="the certificate's key (PEM)")
    parser.add_argument("--client-ca", metavar="FILE", help="ask for client certificates signed by these (PEM)")
    parser.add_argument("--no-copies", action="store_true", help="no series of single copies")
    parser.add_argument("--no-users", action="store_true", help="no series of single users")
    parser.add_argument("--textfile", metavar="FILE", help="keep this file up to date instead of serving")
    return parser


def tls_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    if not options.certificate:
        if options.key or options.client_ca:
            raise StowageError("--key and --client-ca need --certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key)
        if options.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(options.client_ca)
    except (OSError, ssl.SSLError) as error:
        raise StowageError(
            f"--certificate {options.certificate}: {error}; it, its key and --client-ca must be PEM"
        ) from error
    return context


def _serve(pages: Pages, options: argparse.Namespace, stopped: threading.Event) -> None:
    server = Server(address_of(options.listen), lambda path: _answer(pages, path), tls_of(options))
    # Many copies take a third of a second to render: a thread does it, and lets a scrape in between soon.
    sys.setswitchinterval(0.0005)
    renderer = threading.Thread(target=_refresh, args=(pages, stopped), daemon=True)
    renderer.start()
    Notifier().ready(f"listening on {options.listen}")
    try:
        server.serve(lambda: stopped.is_set() or not renderer.is_alive())
    finally:
        server.close()
    if not stopped.is_set():
        raise StowageError("a state section could not be read; see above")


def _refresh(pages: Pages, stopped: threading.Event) -> None:
    while not stopped.wait(POLL_S):
        pages.refresh()


def _answer(pages: Pages, path: str) -> Answer:
    if path == "/metrics":
        return Answer(200, METRICS_TYPE, pages.metrics)
    if path == "/status":
        return Answer(200, "application/json", pages.status)
    if path == "/healthz":
        healthy, text = pages.health()
        return Answer(200 if healthy else 503, "text/plain; charset=utf-8", text.encode() + b"\n")
    return Answer(404, "text/plain; charset=utf-8", b"there are /metrics, /status and /healthz\n")


def _keep_file(pages: Pages, path: str, stopped: threading.Event) -> None:
    if not path.endswith(".prom"):
        raise StowageError(f"--textfile {path}: node_exporter reads only files that end in .prom")
    records.write_bytes(path, pages.metrics, 0o644)
    Notifier().ready(f"writing {os.path.basename(path)}")
    while not stopped.wait(POLL_S):
        if pages.refresh():
            records.write_bytes(path, pages.metrics, 0o644)
