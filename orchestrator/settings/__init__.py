"""Sections of the configuration that are large enough for their own file. `orchestrator.settings.config` puts all of them together."""
