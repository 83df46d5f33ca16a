"""Tasks: the Harbor directory format, the contract with verifiers, and a generated suite.

settings · keys · key_values · sizes            `task.toml`: its values, every key and its treatment, its limits
harbor · bundle · misplaced · plain_text        a task: its files, checked once, immutable from then on
read_directory · sources · message              where tasks come from: directories, JSONL files, messages of the bus
multi_step                                      tasks with several instructions: each step as a task of its own
admit · resources · users · network             whether a run can take a task, and what it grants
extras · unfit · reserved                       MCP servers and skills; scaffolds that cannot run a task; variables that it cannot set
environment                                     files, directories, variables and work directory of a task's programs
dockerfile · last_stage · copies                a Dockerfile, read without a build
work_dir · volumes · downloads                  its work directory and directories of data; commands that need a network
artifacts · artifact_modes · artifact_blobs     the changes that an attempt left, and how they travel
collected                                       other files of the agent's sandbox that go to the tests
verdict · untrusted · held/                     the contract with `tests/test.sh`, and the program that confines the agent's programs
validate_results · longest_silence              checks of results from any sender; how long an attempt may record nothing
leak_check · kept_in_image · carried            environments that hold the answer are refused
unchanged_files                                files of a solution that are the agent's anyway, and give nothing away
needles · word_filter · git_objects             fast search for many texts, and in git repositories
compose/                                        compose files: side services
importing/                                      sets of other forms become task directories
suite/                                          the built-in suite
probes/ · traps/ · vetting/                     reward hacking, traps of test scripts, the controls of `penstock tasks vet`
"""
