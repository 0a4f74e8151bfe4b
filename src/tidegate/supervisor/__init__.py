"""`tidegate up`: everything on one machine, each part a child that is started again if it dies."""

from tidegate.supervisor.house import Refused, free_port, fresh_cid, run, token

__all__ = ["Refused", "free_port", "fresh_cid", "run", "token"]
