"""polyfuse: polyhedral scheduling with layered operator fusion."""

__version__ = "0.1.0"
