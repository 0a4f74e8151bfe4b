"""What programs that tests start import: loaded once, before they are forked."""

import tests.acceptance.fuse
import tests.crash.fuse
import tests.crash.scenes
import tidegate.app
import tidegate.cli
import tidegate.serving
import tidegate.trading_core.server

__all__ = ["tests", "tidegate"]
