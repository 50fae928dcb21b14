"""Certificates and keys: contexts made of them, and what is wrong with them in words."""

import ssl
from collections.abc import Sequence
from pathlib import Path

from control.config import Config, Fault
from control.config.schema import ServiceTls

SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")
"""Debian's and Ubuntu's: the authorities that a node trusts where ``admission.ca`` names none."""


class TlsError(Exception):
    """Files that cannot be used; ``faults`` has them all."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


def server_context(
    path: str, tls: ServiceTls, kind: type[ssl.SSLContext] = ssl.SSLContext
) -> ssl.SSLContext:
    """TLS 1.2 and later for the listener whose settings stand at ``path``, or :class:`TlsError`.
    With ``client_ca`` a client must show a certificate of it."""
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    faults = _load_pair(context, path, tls.certificate, tls.key)
    if tls.client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        faults += _load_ca(context, f"{path}.client_ca", tls.client_ca)
    if faults:
        raise TlsError(faults)
    return context


def server_faults(config: Config) -> list[Fault]:
    """What is wrong with the files of the service's listeners."""
    faults: list[Fault] = []
    for path, tls in (("admin.tls", config.admin.tls), ("admission.tls", config.admission.tls)):
        try:
            if tls:
                server_context(path, tls)
        except TlsError as exc:
            faults += exc.faults
    return faults


def client_faults(config: Config) -> list[Fault]:
    """What is wrong with the files by which this node and a service elsewhere know each other."""
    admission = config.admission
    if admission.url is None or not admission.url.startswith("https:"):
        return []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    faults = _load_ca(context, "admission.ca", admission.ca or SYSTEM_CA)
    if admission.certificate and admission.key:
        faults += _load_pair(context, "admission", admission.certificate, admission.key)
    return faults


def _load_pair(context: ssl.SSLContext, path: str, certificate: Path, key: Path) -> list[Fault]:
    unreadable = [
        fault
        for name, file in (("certificate", certificate), ("key", key))
        if (fault := _unreadable(f"{path}.{name}", file))
    ]
    if unreadable:
        return unreadable
    try:
        # A key with a passphrase would be asked for it on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as exc:
        reason = exc.reason or str(exc)
        if reason == "KEY_VALUES_MISMATCH":
            return [Fault(f"{path}.key", f"{key} is not the key of {certificate}: name its own")]
        told = f"{certificate} and {key} are no PEM certificate and key without a passphrase"
        return [Fault(f"{path}.certificate", f"{told} ({reason}): name two that are")]
    return []


def _load_ca(context: ssl.SSLContext, path: str, file: Path) -> list[Fault]:
    if fault := _unreadable(path, file):
        return [fault]
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as exc:
        told = f"{file} has no PEM certificate of an authority ({exc.reason}): name a file that has"
        return [Fault(path, told)]
    return []


def _unreadable(path: str, file: Path) -> Fault | None:
    try:
        with file.open("rb"):
            return None
    except OSError as exc:
        return Fault(path, f"{file} cannot be read ({exc.strerror}): name a PEM file")
