"""Adds perfd's agent to pods that others make, as an admission webhook of Kubernetes."""

from __future__ import annotations

from perfd.injection.admission_review import reviewed
from perfd.injection.sidecar_patch import Injection, patch_of

__all__ = ["Injection", "patch_of", "reviewed"]
