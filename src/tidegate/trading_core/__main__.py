"""The command `python -m tidegate.trading_core --data DIR --listen unix:PATH`."""

import sys

from tidegate.trading_core.server import main

sys.exit(main())
