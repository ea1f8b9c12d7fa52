"""Network addresses that may be connected to: public ones, and those in the networks that the site allows."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = (
    ipaddress.IPv6Network("::/96"),  # an IPv4 address in an old form
    ipaddress.IPv6Network("64:ff9b:1::/48"),  # NAT64 of a local network
    ipaddress.IPv6Network("fec0::/10"),  # site-local
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays to 6to4
)


def networks(given: Iterable[str]) -> list[Network]:
    """Parse networks. Raises ValueError that names an invalid one."""
    if isinstance(given, str):
        raise ValueError(f"allow_addresses must be a list of networks, not {given!r}; write [{given!r}]")
    return [ipaddress.ip_network(text) for text in given]


def is_permitted(text: str, allowed: Iterable[Network] = ()) -> bool:
    """Whether the address is public or in an allowed network. False for text that is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    forms = [address, *_inside(address)]
    if any(form.version == network.version and form in network for form in forms for network in allowed):
        return True
    return all(map(_is_public, forms))


def _inside(address: Address) -> list[Address]:
    """The IPv4 addresses inside an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    teredo = address.teredo or ()
    found = [address.ipv4_mapped, address.sixtofour, *teredo]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return True  # the embedded address decides: it is checked too
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    known = address.is_reserved and address not in _NAT64
    return (address.is_global or address in _NAT64) and not (address.is_multicast or known)
