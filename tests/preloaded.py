"""The imports of the programs that tests start: loaded once, before the programs are forked."""

import tests.acceptance.fuse
import tests.crash.fuse
import tests.crash.scenes
import tidegate.app
import tidegate.cli
import tidegate.serving
import tidegate.trading_core.server

__all__ = ["tests", "tidegate"]
