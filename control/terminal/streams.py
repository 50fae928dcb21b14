"""The command's own stdin, stdout and stderr, as whoever starts it leaves them."""

import io
import os
import sys

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""By their descriptors' numbers."""


def prepare() -> bool:
    """Whether there is a standard output. In the place of a closed descriptor there is
    ``/dev/null`` afterwards: the next file or socket would get its number. A character that a
    terminal's encoding lacks is written as its number."""
    has_output = sys.stdout is not None
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null == number:
                os.set_inheritable(null, True)
            else:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return has_output


def give_up() -> OSError | None:
    """What keeps stdout from taking what is left, None where nothing does. It is dropped then:
    Python would try once more at its end, and fail."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exc
    return None
