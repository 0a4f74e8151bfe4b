"""Any remote account service that speaks HTTP, held to the contract of a system."""

from tidegate.systems.http.accounts import (
    HttpAccounts,
    HttpSettings,
    RemoteAsset,
    ServicePaths,
    key_of,
)

__all__ = ["HttpAccounts", "HttpSettings", "RemoteAsset", "ServicePaths", "key_of"]
