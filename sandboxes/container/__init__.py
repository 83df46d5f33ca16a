"""Sandboxes by podman or docker: a container for every program, files in a directory of this machine."""
