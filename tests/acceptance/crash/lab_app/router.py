"""The router of a site that reads from a replica, as in Django's documentation."""

from __future__ import annotations

from typing import Any


class PrimaryReplicaRouter:
    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool:
        return True
