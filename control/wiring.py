"""The objects of the admission service, made from its configuration.

Imported in the worker, so that gunicorn's SIGHUP brings in new code.
"""

import random
import time
from typing import TYPE_CHECKING

from control.admission import Admission
from control.api.app import WsgiApp, create_app
from control.audit import AuditLog
from control.chronicle.subscribers import Subscribers
from control.config import Config, Loaded
from control.core.estimate import Estimate
from control.core.pool import Backend, Pool
from control.stores import MemoryStore, Store
from control.tracing.spans import Tracing

if TYPE_CHECKING:
    from control.tracing.otlp import Collector

JITTER = 0.25
"""Clients that were refused together come back spread over this part of their wait."""


def jitter() -> float:
    """A factor for a refused client's wait."""
    return random.uniform(1 - JITTER, 1 + JITTER)


def build_collector(config: Config) -> "Collector | None":
    """Where spans go; None where tracing is not configured."""
    if config.tracing is None:
        return None
    from control.tracing.otlp import Collector  # noqa: PLC0415 - few need it

    return Collector(config.tracing.endpoint, config.node_name)


def build_admission(
    config: Config, has_predecessor: bool, collector: "Collector | None" = None
) -> Admission:
    """The use cases over the configured store, with all that its journal holds; there must be
    one where somebody decided here before. :class:`control.stores.StoreError` where it cannot
    be used."""
    return Admission(
        store=build_store(config, has_predecessor),
        jitter=jitter,
        routes={route.path: route.pool for route in config.routes},
        estimate=build_estimate(config),
        tracing=Tracing(collector.send, collector.counts) if collector else None,
    )


def build_app(loaded: Loaded, admission: Admission, subscribers: Subscribers) -> WsgiApp:
    """The service's HTTP."""
    config = loaded.config
    urls = {
        (name, backend.name): backend.url
        for name, pool in config.pools.items()
        for backend in pool.backends
    }
    return create_app(admission, subscribers, urls, loaded, AuditLog(config.audit_log))


def build_store(config: Config, has_predecessor: bool) -> Store:
    """The configured store with the configured pools."""
    pools = [
        Pool(
            name,
            {b.name: Backend(b.name, b.url, b.max_streams, b.max_tokens) for b in pool.backends},
            session_ttl=pool.session_ttl,
            drain=pool.drain,
            pass_over=pool.pass_over,
            decided_locally=pool.when_down == "local",
        )
        for name, pool in config.pools.items()
    ]
    return MemoryStore.journaled(
        pools,
        config.journal,
        jitter=jitter,
        now=time.monotonic(),
        expected=has_predecessor,
    )


def build_estimate(config: Config) -> Estimate:
    """The configured estimate."""
    return Estimate(
        config.estimate.tokens_per_char,
        config.scenes.expected_output,
        config.scenes.default,
    )
