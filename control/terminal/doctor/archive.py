"""The file that goes with a bug report."""

import errno
import io
import os
import tarfile
import time
from pathlib import Path


def write_archive(output: Path | None, members: dict[str, str]) -> Path:
    """The archive, readable by its owner only, whole or not at all."""
    name = time.strftime("weir-doctor-%Y%m%d-%H%M%S")
    archive = (output or Path(f"{name}.tar.gz")).absolute()
    if archive.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(archive))
    part = archive.with_name(archive.name + ".part")
    with (
        os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz") as tar,
    ):
        for member, text in members.items():
            data = text.encode("utf-8", "replace") + b"\n"
            about = tarfile.TarInfo(f"{name}/{member}")
            about.size, about.mtime, about.mode = len(data), int(time.time()), 0o600
            tar.addfile(about, io.BytesIO(data))
    part.replace(archive)
    return archive
