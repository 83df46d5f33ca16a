"""The examples of the guide, each a working scaffold. `penstock scaffold new` copies them."""
