"""Read models: the views of the data pool that people see. Shared by the dashboard, `penstock top`, the command line and the exports. Reads
only."""
