"""The messages of a session, independent of wire and chat format: turns and their calls, requests, the tools that wires identify by type."""
