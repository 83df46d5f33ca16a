"""Images without a daemon: root file systems on this machine, from which any number of sandboxes of bubblewrap start.

`store.py` keeps them by digest. `oci.py`, `layers.py` and `rootfs.py` read archives, layers and directories, `unpack.py` writes them without
following a link, and `adapt.py` makes them fit a sandbox. `image_mount.py` (in the joiner) and `mounted.py` (in the owner) lay a writable layer
over the work directory of one sandbox. `view.py` lays out the places around it, and `changes.py` reads the difference.
`build.py` and `bootstrap.py` make images by buildah and debootstrap, in the cage of `cage.py` and `caged.py`;
`build_files.py` has the files of this machine that builds read.
"""
