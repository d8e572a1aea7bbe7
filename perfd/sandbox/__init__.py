"""A process without rights, in which an agent of root reads what users of the node wrote."""

from perfd.sandbox.sandbox_client import Sandbox

__all__ = ["Sandbox"]
