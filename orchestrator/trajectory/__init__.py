"""Token sequences: branches of step trees, their trie, recorded routes, and the attribution of each moment of an attempt."""
