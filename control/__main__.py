"""``python -m control`` is ``weir``."""

import sys

from control.cli import main

sys.exit(main())
