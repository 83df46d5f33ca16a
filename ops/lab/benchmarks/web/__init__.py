"""How fast the dashboard shows a run with 100,000 rollouts behind it."""
