"""Numbers and names as people read them. JSON has them plain."""

import time


def age(seconds: float | None) -> str:
    """``0.4s``, ``12s``, ``3m12s``, ``2h05m``, ``3d04h``."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if whole < 60:
        return f"{whole}s"
    if hours == 0:
        return f"{minutes}m{whole % 60:02}s"
    if days == 0:
        return f"{hours}h{minutes % 60:02}m"
    return f"{days}d{hours % 24:02}h"


def count(number: float) -> str:
    """``80,000``"""
    return f"{number:,.0f}"


def size(number: float | None) -> str:
    """``812 B``, ``3.7 MB``, ``1.2 GB``."""
    if number is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 1_000 or unit == "GB":
            break
        number /= 1_024
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def streams(number: int) -> str:
    """``1 stream``, ``18 streams``."""
    return f"{count(number)} stream" + ("" if number == 1 else "s")


def clock(at: float) -> str:
    """A time of day here, with its milliseconds."""
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1_000) % 1_000:03}"


def moment(at: float) -> str:
    """Date and time here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def plain(text: object) -> str:
    """Text from elsewhere, without what would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
