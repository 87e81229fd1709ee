"""Tenants: parties that do not trust each other, each with their own recipes, digests, models and log entries."""

from __future__ import annotations

import re
from pathlib import Path

DEFAULT_TENANT = "default"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_MARK = "@"
"""no recipe's name can hold it, so that a tenant's folder is reached under no other tenant's name"""


def require_name(tenant_id: str) -> str:
    """Return the tenant's name. Raises ValueError for one that is malformed."""
    if not _NAME.fullmatch(tenant_id):
        raise ValueError("A tenant is 1 to 63 of a-z, 0-9, _ and -, and starts with a letter or digit.")
    return tenant_id


def recipes_of(root: Path, tenant_id: str) -> Path:
    """Return the folder of the tenant's recipes in ``root`` (EXPUNGE_RECIPES), whether it exists or not.

    The tenant ``default`` has the folder itself, and every other one ``@NAME`` inside it.
    """
    return root if tenant_id == DEFAULT_TENANT else root / f"{_MARK}{require_name(tenant_id)}"


def listed(text: str) -> frozenset[str] | None:
    """Return the tenants that a setting lists, separated by commas; None: it is empty, and means every tenant.

    Raises ValueError for a malformed name.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    return frozenset(require_name(name) for name in names) or None
