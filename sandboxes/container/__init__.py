"""Sandboxes by podman or docker: one container per sandbox, files in a directory of this machine."""
