"""The examples of the guide, each a scaffold that works; `penstock scaffold new` copies them."""
