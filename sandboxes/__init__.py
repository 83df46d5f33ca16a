"""Sandboxes: isolated places in which the programs of agents and tests run. `base` is the port: `Provider.open` starts one.

base                                                the port: a provider's interface, and the values that cross it
bubblewrap · bubblewrap_sandbox · bubblewrap_program   the default provider
session · holder · join · user_namespace            its namespaces: process 1, and how programs enter them
seccomp · cgroups · beginning · effective           its limits, and the isolation that is in force
local · directory                                   no isolation, for development only; what it shares with other directory sandboxes
container/ · kubernetes/ · inside/                  podman and docker, pods, and the supervisor in a pod
conformance/                                        the checks that each provider must pass, escape attempts among them
images/ · image_mount · build_context               images without a daemon
execution · program · spawned · procfs · ready      a running program, to its end
users · etc · moves · system                        users and places inside a sandbox, and the system around them
artifacts · elsewhere · lost_properties · tree      files: changes, places of an image, lost properties, hostile trees
disk_usage · nameless                               how full a sandbox is; files without a name that processes hold
reap · cleanup_daemon · owned · owner               the ends of owners: nothing outlives them
ending · machine · unstartable · disk_full          errors: at the end, of this machine, of a program, of a disk
from_environment · tools · login                    settings without arguments; programs on PATH; the name of our user
text_files · shell_lines · paths · docker_patterns   text as people and programs save it, paths, and patterns of ignore files
"""
