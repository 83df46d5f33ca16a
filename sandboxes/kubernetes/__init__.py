"""Sandboxes as pods of a Kubernetes cluster."""

KUBERNETES = "kubernetes"
"""The provider's name in a configuration."""
