"""A client that makes any HTTP account service a system of Tidegate."""

from tidegate.systems.http.accounts import (
    HttpAccounts,
    HttpSettings,
    RemoteAsset,
    ServicePaths,
    key_of,
)

__all__ = ["HttpAccounts", "HttpSettings", "RemoteAsset", "ServicePaths", "key_of"]
