"""Where Weir's own files are: beside the package in a checkout, under ``share/weir`` when
installed."""

import sys
from pathlib import Path

_checkout = Path(__file__).resolve().parent.parent
_base = _checkout if (_checkout / "lua" / "weir").is_dir() else Path(sys.prefix) / "share" / "weir"

TEMPLATES = _base / "nginx"
WWW = TEMPLATES / "www"
LUA = _base / "lua"
