"""Any remote account service that speaks HTTP, held to the contract of a system."""

from tidegate.systems.http.accounts import Asset, HttpAccounts, HttpSettings, Paths, key_of

__all__ = ["Asset", "HttpAccounts", "HttpSettings", "Paths", "key_of"]
