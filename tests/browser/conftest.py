"""The browser tests use the helpers of their neighbours."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "views"))
