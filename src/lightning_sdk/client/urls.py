"""URLs as they may be written down, and whether one lies inside the policy endpoint."""

from __future__ import annotations

import functools
from urllib.parse import SplitResult, urlsplit

from lightning_sdk.ids import unencodable

_DEFAULT_PORTS = {"http": 80, "https": 443}


# An agent calls few URLs many times.
@functools.lru_cache(maxsize=64)
def public_url(url: str) -> str:
    """`url` without user information, query and fragment; "" for what cannot be read as a URL."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    public = parts._replace(netloc=host, query="", fragment="").geturl()
    return "" if unencodable(public) else public


class UrlPrefix:
    """An http(s) URL under which others lie: same scheme, host and port, and a path that continues its path.

    Raises:
        ValueError: not such a URL; the message says what is wrong with it.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError("it is no http:// or https:// URL with a host")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("it has user information, a query or a fragment")
        self._origin = _origin(parts)
        self._path = parts.path.rstrip("/") + "/"

    def contains(self, url: str) -> bool:
        """Whether a request to `url` goes there."""
        try:
            parts = urlsplit(url)
            origin = _origin(parts)
        except ValueError:
            return False
        # A path that climbs may leave the prefix again.
        climbs = ".." in parts.path or "%2e" in parts.path.lower()
        return origin == self._origin and not climbs and (parts.path.rstrip("/") + "/").startswith(self._path)


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
