"""Shared by every process: logs, metrics, the watchdog, failpoints, plug-ins."""
