"""A service's error in one line: what it was, and how to mend it."""

import ssl

from control.client import ServiceError
from control.terminal.place import ADDRESS_VARIABLE, TOKEN_VARIABLE, Place

ANOTHER = f"with --admin URL or {ADDRESS_VARIABLE}"
NOT_IN_FORCE = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and ..._CERT_HAS_EXPIRED."""
ANOTHER_NAME = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and ..._IP_ADDRESS_MISMATCH."""


ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What using an answer raises that is of another shape than Weir's."""


def explain_odd(exc: Exception, address: str) -> str:
    """An answer that could not be used, and the remedy."""
    what = f"{address} answers, and not as Weir's admin plane does ({type(exc).__name__}: {exc})"
    return f"{what}: name the admin plane {ANOTHER}, or take the weir of its version"


def explain(exc: ServiceError, place: Place) -> str:
    """An error of the service at this place, and its remedy."""
    if exc.status is None:
        return _no_answer(exc, place)
    if not exc.code:
        what = f"{place.address} answers, and not as Weir's admin plane does ({exc.status})"
        return f"{what}: name the admin plane {ANOTHER}"
    if exc.status == 401 and place.token is None:
        return (
            f"{place.address} asks for a token: set {TOKEN_VARIABLE}, or name a file that has it "
            "with --token-file"
        )
    if exc.status == 401:
        return (
            f"{place.address} does not know the token of {place.told_by}: it must be one of those "
            "under admin.tokens in the service's weir.yml"
        )
    if exc.status == 403:
        return f"{exc.detail or 'forbidden'} (the token is that of {place.told_by})"
    return exc.detail or str(exc)


def _no_answer(exc: ServiceError, place: Place) -> str:
    cause = str(exc).rsplit(": ", 1)[-1].rsplit("] ", 1)[-1].partition(" (_ssl.c")[0]
    what = f"no service answers at {place.address} ({cause})"
    broken = _broken_connection(exc)
    if broken and place.address.startswith("https://"):
        return f"no TLS connection to {place.address} ({cause}): {_tls_remedy(broken, place)}"
    if broken:
        return f"{what}: where it speaks TLS say https://"
    if place.config and place.config.admission.url:
        return f"{what}: this node's service is elsewhere; name its admin plane {ANOTHER}"
    return f"{what}: start it with weir up, or name another {ANOTHER}"


def _broken_connection(exc: ServiceError) -> ssl.SSLError | ConnectionResetError | None:
    """What ended a connection that was made."""
    found: object = exc
    while isinstance(found, Exception):
        if isinstance(found, ssl.SSLError | ConnectionResetError):
            return found
        # urllib3 has some as its own error's argument only.
        found = found.__cause__ or found.__context__ or next(iter(found.args), None)
    return None


def _tls_remedy(broken: ssl.SSLError | ConnectionResetError, place: Place) -> str:
    reason = getattr(broken, "reason", None) or ""
    if isinstance(broken, ssl.SSLCertVerificationError):
        if broken.verify_code in ANOTHER_NAME:
            return "call it by a name of its certificate"
        if broken.verify_code in NOT_IN_FORCE:
            return "its certificate needs renewing, or a clock setting"
        return "name the authority that vouches for its certificate with --ca FILE"
    if reason == "WRONG_VERSION_NUMBER":
        return "it speaks no TLS: say http://"
    # The end of a connection is also how its refusal may look from here.
    if isinstance(broken, ssl.SSLEOFError | ConnectionResetError) or "ALERT" in reason:
        if place.certificate:
            return "it may not know the authority of your --cert: see its admin.tls.client_ca"
        return "it may ask for a certificate of yours: name it with --cert FILE and --key FILE"
    return "--ca, --cert and --key must be PEM files, and the key that of the certificate"
