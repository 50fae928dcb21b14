"""Contradictions within what lets others reach the service: listeners, TLS, tokens."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from control.config.faults import Fault
from control.config.units import Address, address

OF_THE_SERVICE = ("listen", "tls", "tokens")
OF_A_NODE = ("ca", "certificate", "key", "token")
"""Keys of ``admission`` that make sense with a ``url`` only."""


def admission_faults(admission: Mapping[Any, Any]) -> Iterator[Fault]:
    """Faults of the section ``admission``, which may itself be faulty."""
    yield from token_faults("admission.tokens", admission.get("tokens"))
    url = admission.get("url")
    if isinstance(url, str):
        yield from _node_faults(url, admission)
        return
    for key in OF_A_NODE:
        if admission.get(key) is not None:
            yield Fault(
                f"admission.{key}", "is for a node apart from its service: add url, or remove it"
            )
    listen, tls = admission.get("listen"), admission.get("tls")
    if listen is None:
        for key in ("tls", "tokens"):
            if admission.get(key):
                yield Fault(f"admission.{key}", "protects admission.listen: add that, or remove it")
    elif isinstance(listen, str) and not is_loopback(listen):
        if tls is None:
            yield Fault(
                "admission.listen",
                f"{listen} is open to others, and would be without TLS: add admission.tls, or "
                "listen on 127.0.0.1",
            )
        client_ca = tls.get("client_ca") if isinstance(tls, dict) else None
        if not admission.get("tokens") and not client_ca:
            yield Fault(
                "admission.tokens",
                f"{listen} is open to others: add a token ({{name: node-1, file: PATH}}), or "
                "admission.tls.client_ca",
            )


def token_faults(path: str, tokens: object) -> Iterator[Fault]:
    """Faults of a list of tokens."""
    names: Counter[str] = Counter()
    for n, entry in enumerate(tokens if isinstance(tokens, list) else []):
        if not isinstance(entry, dict):
            continue
        if (entry.get("env") is None) == (entry.get("file") is None):
            yield Fault(f"{path}[{n}]", "must name one source of the token: either env or file")
        name = entry.get("name")
        if isinstance(name, str):
            names[name] += 1
            if names[name] == 2:
                yield Fault(f"{path}[{n}].name", f"{name!r} stands twice: give each its own")


def is_loopback(place: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return address(place).is_loopback
    except ValueError:
        return True  # not an address: reported by its own check


def _node_faults(url: str, admission: Mapping[Any, Any]) -> Iterator[Fault]:
    for key in OF_THE_SERVICE:
        if admission.get(key):
            yield Fault(
                f"admission.{key}",
                "is the service's, and this node's is at admission.url: remove one",
            )
    certificate, own_key = admission.get("certificate"), admission.get("key")
    if (certificate is None) != (own_key is None):
        missing = "key" if own_key is None else "certificate"
        yield Fault(f"admission.{missing}", "is missing: certificate and key go together")
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # reported by its own check
    far = not Address(parts.hostname or "", 0).is_loopback
    if parts.scheme == "http":
        if far:
            yield Fault("admission.url", f"{url} is not of this machine: use https")
        for key in ("ca", "certificate"):
            if admission.get(key) is not None:
                yield Fault(
                    f"admission.{key}", "is for https, and admission.url is http: change one"
                )
    elif far and certificate is None and admission.get("token") is None:
        yield Fault(
            "admission.token",
            "is missing: the service lets in only who shows a token or a certificate",
        )
