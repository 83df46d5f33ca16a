"""`penstock tasks import harbor`: directories, repositories and registries."""

import json
import os
import tarfile
import tomllib
from pathlib import Path

import pytest

from orchestrator.tasks.harbor import load
from orchestrator.tasks.importing import git
from orchestrator.tasks.settings import Metadata
from tests.import_sets import HARBOR, committed, write
from tests.import_sets import git as run_git
from tests.unit.tasks.importing.rig import imported, refused


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two tasks, at different depths."""
    write(tmp_path / "set" / "easy" / "word", HARBOR)
    write(tmp_path / "set" / "other", {**HARBOR, "instruction.md": "Write hi into out.txt\n"})
    return tmp_path / "set"


def test_tasks_are_found_at_any_depth_and_an_import_that_is_repeated_changes_nothing(
    suite: Path, tmp_path: Path
) -> None:
    (suite / "other" / "environment" / "files" / "empty").mkdir()
    found = imported("harbor", suite, tmp_path / "to")
    assert (found.code, found.outcomes) == (0, {"word": "imported", "other": "imported"})
    for source, name in ((suite / "easy" / "word", "word"), (suite / "other", "other")):
        assert load(tmp_path / "to" / name).content_hash == load(source).content_hash
    assert sorted(each.name for each in (tmp_path / "to").iterdir()) == ["other", "word"]
    (tmp_path / "to" / "word" / "instruction.md").write_text("mine\n")
    again = imported("harbor", suite, tmp_path / "to")
    assert (again.code, again.outcomes) == (1, {"word": "refused", "other": "unchanged"})
    assert "word exists already with other content: remove it" in again.reasons["word"]
    assert (tmp_path / "to" / "word" / "instruction.md").read_text() == "mine\n"


def test_one_bad_task_is_refused_by_name_and_the_others_are_imported(suite: Path, tmp_path: Path) -> None:
    bad: dict[str, dict[str, str | bytes]] = {
        "toml": {"task.toml": "[agent\n"},
        "latin": {"instruction.md": b"\xe4"},
        "leak": {"environment/files/a.sh": HARBOR["tests/test.sh"]},
        "twins/word": {},
    }
    for name, files in bad.items():
        write(suite / name, {**HARBOR, **files})
    write(suite / "incomplete", {"instruction.md": "Say hi.\n"})
    write(suite / "out", HARBOR)
    (suite / "out" / "environment" / "files" / "link").symlink_to("../../../../../../etc/passwd")
    write(suite / "pipe", HARBOR)
    os.mkfifo(suite / "pipe" / "tests" / "fifo")
    write(suite / "-name", HARBOR)
    found = imported("harbor", suite, tmp_path / "to")
    assert found.code == 1 and found.report["imported"] == 2
    for name, words in {
        "toml": "task.toml: not valid TOML",
        "latin": "instruction.md is not UTF-8 text",
        "leak": "holds the whole text of tests/test.sh",
        "incomplete": "task.toml is missing",
        "out": "which leads out of environment/",
        "pipe": "tests/fifo is neither a file nor a folder",
        "-name": "'-name' cannot name a directory",
        "word": "has the same name: import one of them into another directory",
    }.items():
        assert words in found.reasons[name]


def test_a_name_with_spaces_or_signs_gets_a_directory_without_them(suite: Path, tmp_path: Path) -> None:
    for name in ("Sum of two", "[easy] word (v2)", "a:b", "a b", "\xe9"):
        write(suite / name, HARBOR)
    found = imported("harbor", suite, tmp_path / "to")
    made = {"Sum-of-two", "easy-word-v2", "a-b"}
    assert made <= {path.name for path in (tmp_path / "to").iterdir()}
    assert {found.outcomes[name] for name in made - {"a-b"}} == {"imported"}
    assert "a b has the same name: import one of them" in found.reasons["a-b"]
    assert "cannot name a directory" in found.reasons["\xe9"]
    assert imported("harbor", suite / "Sum of two", tmp_path / "to").outcomes == {"Sum-of-two": "unchanged"}


def test_what_a_run_would_refuse_is_imported_and_named(suite: Path, tmp_path: Path) -> None:
    services = {"environment/docker-compose.yaml": "services: {main: {}, db: {image: 'postgres:16'}}\n"}
    write(suite / "services", {**HARBOR, "environment/Dockerfile": "FROM python:3.11\n", **services})
    write(suite / "image", {**HARBOR, "task.toml": '[environment]\ndocker_image = "example.org/a:1"\n'})
    found = imported("harbor", suite, tmp_path / "to")
    assert found.code == 0 and found.report["refused_by_run"] == 2
    assert found.run["services"] == (
        "environment/docker-compose.yaml has the services db, which the provider bubblewrap does not run: the provider container does "
        '(sandbox.provider = "container"); choose it, or put what they do into the image and start it in [environment].healthcheck'
    )
    assert "[environment].docker_image = 'example.org/a:1'" in found.run["image"]


def test_the_limits_of_a_run_hold(suite: Path, tmp_path: Path) -> None:
    write(suite / "large", {**HARBOR, "tests/data": os.urandom(2 << 20)})
    configuration = tmp_path / "penstock.toml"
    configuration.write_text('[run]\nname = "small"\n[policy]\nmodel = "m"\n[tasks]\nmax_file_mb = 1\n')
    assert imported("harbor", suite, tmp_path / "all").code == 0
    found = imported("harbor", suite, tmp_path / "small", "-c", str(configuration))
    assert found.reasons == {"large": "tests/data has 2.0 MB, and a file of a task has at most 1 MB"}


def test_a_source_without_tasks_is_refused_as_a_whole(suite: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    (tmp_path / "empty").mkdir()
    archive = tmp_path / "set.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(suite)
    assert refused("harbor", tmp_path / "empty", to).endswith(
        "holds no task: a Harbor task has task.toml and instruction.md"
    )
    assert "is not a directory: unpack an archive first" in refused("harbor", archive, to)
    assert "does not exist: give a directory, a git URL or a registry.json" in refused(
        "harbor", tmp_path / "no", to
    )
    assert not to.exists()


def test_a_repository_is_cloned_without_hooks_submodules_and_history(suite: Path, tmp_path: Path) -> None:
    committed(suite)
    run_git(suite, "tag", "v1")
    (suite / "other" / "instruction.md").write_text("Write hi, please.\n")
    write(
        suite,
        {
            ".gitattributes": "* filter=lfs\n",
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = file:///nowhere\n',
        },
    )
    run_git(suite, "add", "-A")
    run_git(suite, "commit", "-q", "-m", "second")
    found = imported("harbor", f"file://{suite}", tmp_path / "new")
    assert (found.code, found.outcomes) == (0, {"word": "imported", "other": "imported"})
    assert (tmp_path / "new" / "other" / "instruction.md").read_text() == "Write hi, please.\n"
    older = imported("harbor", f"file://{suite}", tmp_path / "old", "--revision", "v1")
    assert (tmp_path / "old" / "other" / "instruction.md").read_text() == "Write hi into out.txt\n"
    assert all(run_git(suite, "rev-parse", "v1")[:12] in each["source"] for each in older.report["tasks"])


def test_a_task_that_is_a_repository_is_imported_without_its_git_and_stays_the_same(tmp_path: Path) -> None:
    one = write(tmp_path / "one", HARBOR)
    plain = load(one)
    commit = committed(one)
    for name, source in (("one", f"file://{one}"), ("one", f"file://{one}/"), ("one", str(one))):
        to = tmp_path / f"to-{len(source)}"
        for outcome in ("imported", "unchanged"):
            assert imported("harbor", source, to).outcomes == {name: outcome}
            assert load(to / name).content_hash == plain.content_hash and set(load(to / name).files) == set(
                HARBOR
            )
    entry: dict[str, object] = {"git_url": f"file://{one}", "git_commit_id": commit}
    file = registry(
        tmp_path,
        {**entry, "path": "."},
        {**entry, "name": "two", "path": ""},
        {**entry, "name": "three", "path": "./"},
    )
    found = imported("harbor", file, tmp_path / "registered")
    assert found.outcomes == dict.fromkeys(("one", "two", "three"), "imported"), found.reasons
    assert load(tmp_path / "registered" / "two").content_hash == plain.content_hash
    here = registry(one, {"path": "."})
    assert imported("harbor", here, tmp_path / "near").outcomes == {"one": "imported"}


@pytest.mark.parametrize(
    "url",
    [
        "https://a.org/x/one.git",
        "https://a.org/x/one/",
        "ssh://a.org/one",
        "git@a.org:one.git",
        "git@a.org:x/one",
    ],
)
def test_a_repository_is_called_by_the_last_part_of_its_url(url: str) -> None:
    assert git.name_of(url) == "one"


def test_a_url_that_cannot_be_cloned_is_refused_with_the_reason(tmp_path: Path) -> None:
    to = tmp_path / "to"
    for url in (
        "http://example.org/a",
        "git://example.org/a",
        "ext::sh -c true",
        "https::x://y",
        "file\n://x",
    ):
        assert "cannot be cloned: give a URL that begins with https://, ssh://, file://" in refused(
            "harbor", url, to
        )
    assert "holds a password" in refused("harbor", "https://me:sesame@example.org/a", to)
    assert "sesame" not in refused("harbor", "https://me:sesame@example.org/a", to)
    assert "names no host" in refused("harbor", "ssh://-oProxyCommand=touch/a", to)
    assert refused("harbor", f"file://{tmp_path}/none", to).startswith("git fetch failed: fatal: ")
    assert "is not the name of a commit" in refused(
        "harbor", f"file://{tmp_path}", to, "--revision", "--upload-pack=x"
    )
    assert "--revision is about a git URL" in refused("harbor", tmp_path, to, "--revision", "v1")
    timeout = refused("harbor", tmp_path, to, "--git-timeout-s", "5")
    assert "--git-timeout-s is about a git URL or a registry.json" in timeout


def test_git_that_takes_too_long_is_ended_with_its_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    write(tmp_path / "bin", {"git": "#!/bin/sh\nsleep 600 & wait\n"})
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match=r"git fetch took longer than 0\.2 s"):
        git.Git(0.2).run("fetch")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="the program git is missing: install it"):
        git.Git(5).run("fetch")


def registry(tmp_path: Path, *tasks: object) -> Path:
    file = tmp_path / "registry.json"
    file.write_text(json.dumps([{"name": "mine", "version": "1.0", "description": "", "tasks": list(tasks)}]))
    return file


def test_a_registry_names_commits_and_paths_of_repositories(suite: Path, tmp_path: Path) -> None:
    commit = committed(suite)
    url = f"file://{suite}"
    write(tmp_path / "near" / "local", HARBOR)
    file = registry(
        tmp_path,
        {"name": "first", "git_url": url, "git_commit_id": commit, "path": "easy/word"},
        {"name": "second", "git_url": url, "git_commit_id": commit, "path": "other"},
        {"name": "absent", "git_url": url, "git_commit_id": commit, "path": "nothing"},
        {"name": "local", "path": "near/local"},
        {"name": "up", "path": "../near/local"},
        {"name": "above", "git_url": url, "path": "a/../../b"},
        {"name": "plain", "git_url": "http://example.org/x", "path": "a"},
        {"name": "gone", "git_url": url, "git_commit_id": "0" * 40, "path": "a"},
        {"name": 7, "path": "a"},
        "text",
    )
    found = imported("harbor", file, tmp_path / "to")
    assert found.code == 1
    assert [name for name, outcome in found.outcomes.items() if outcome == "imported"] == [
        "local",
        "first",
        "second",
    ]
    assert found.reasons["absent"] == "it is not there, or not a directory"
    assert "'../near/local' is not a plain relative path" in found.reasons["up"]
    assert "'a/../../b' is not a plain relative path" in found.reasons["above"]
    assert "cannot be cloned" in found.reasons["plain"]
    assert found.reasons["gone"].startswith("git fetch failed: ")
    assert found.reasons["registry.json task 10"].startswith("it must be an object with path and name")
    assert imported("harbor", file, tmp_path / "to", "--dataset", "mine@1.0").outcomes["first"] == "unchanged"


def test_a_file_that_is_not_a_registry_or_not_one_data_set_is_refused(tmp_path: Path) -> None:
    to, file = tmp_path / "to", registry(tmp_path)
    assert "the data set mine@1.0 has no task" in refused("harbor", file, to)
    assert "has 0 data sets called 'yours': name one with --dataset, of mine@1.0" in refused(
        "harbor", file, to, "--dataset", "yours"
    )
    both: list[dict[str, object]] = [{"name": name, "version": "1", "tasks": [{}]} for name in ("a", "b")]
    file.write_text(json.dumps(both))
    assert "has 2 data sets: name one with --dataset, of a@1, b@1" in refused("harbor", file, to)
    file.write_text("[1]")
    assert "is not a registry: it must be a list of data sets" in refused("harbor", file, to)
    file.write_text("{")
    assert "is not JSON" in refused("harbor", file, to)
    assert "--dataset is about a registry.json" in refused("harbor", tmp_path, to, "--dataset", "a")


UNKNOWN = """\
# a comment stays
version = "1.0"
zz = [1]
[environment]
base_image = "debian:12" # of the image
memory_mb = 100
[metadata]
name = "word"
[verifier]
implemented = false
[verifier.timing]
of = 1
"""


KEYS_MEANT = ("timeout_secs", "timeout_sec", "verifer", "zz", "domain", "gpus", *Metadata.model_fields)
MOVES = ("zz", "environment.base_image", "verifier.implemented", "verifier.timing")


def moves(*keys: str) -> list[str]:
    return [word for key in keys for word in ("--move-key", key)]


def test_named_unknown_keys_are_moved_below_metadata(tmp_path: Path) -> None:
    write(tmp_path / "set" / "word", {**HARBOR, "task.toml": UNKNOWN})
    found = imported("harbor", tmp_path / "set", tmp_path / "to")
    assert "[environment].base_image is not known" in found.run["word"]
    assert found.notes["word"] == (
        f"keys that are not known can be moved below [metadata], where they have no effect: {' '.join(moves(*MOVES))}"
    )
    found = imported("harbor", tmp_path / "set", tmp_path / "moved", *moves(*MOVES))
    assert (found.code, found.run) == (0, {})
    assert found.notes["word"] == (
        "moved below [metadata], where they have no effect: zz, [environment].base_image, [verifier].implemented, [verifier].timing"
    )
    text = (tmp_path / "moved" / "word" / "task.toml").read_text()
    assert text.startswith("# a comment stays\n") and tomllib.loads(text) == {
        "version": "1.0",
        "environment": {"memory_mb": 100},
        "verifier": {},
        "metadata": {
            "name": "word",
            "zz": [1],
            "environment": {"base_image": "debian:12"},
            "verifier": {"implemented": False, "timing": {"of": 1}},
        },
    }


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[agent]\ntimeout_secs = 5", "[agent].timeout_secs is not known: write [agent].timeout_sec"),
        ("[solution]\ntimeout_sec = 5", "[solution].timeout_sec is not known"),
        ("[verifer]\nimplemented = 5", "[verifer] is not known: write [verifier]"),
        ('[task]\ndomain = "coding"', "[task].domain is not known: write [metadata].domain"),
        ('[[steps]]\nname = "a"\nzz = 1', "[[steps]].zz is not known"),
        ("[agent]\nzz = 5\n[metadata.agent]\nzz = 6", "[agent].zz is not known"),
        ("[agent]\nzz = 5\n[metadata]\nagent = 6", "[agent].zz is not known"),
        ('["agent.zz"]\na = 6', "'agent.zz' is not known"),
        ("[environment]\ngpus = 1", "[environment].gpus = 1 is not honoured"),
        # They would be read in [metadata].
        *[(f"{key} = 1", f"{key} is not known") for key in Metadata.model_fields],
    ],
)
def test_a_key_that_may_be_meant_as_one_of_the_format_or_of_metadata_is_not_moved(
    tmp_path: Path, toml: str, words: str
) -> None:
    write(tmp_path / "set" / "word", {**HARBOR, "task.toml": toml})
    named = [
        f"{table}{key}"
        for table in ("", "agent.", "solution.", "task.", "environment.")
        for key in KEYS_MEANT
    ]
    found = imported("harbor", tmp_path / "set", tmp_path / "to", *moves(*named))
    assert words in {**found.run, **found.reasons}["word"] and found.notes == {}


def test_an_unknown_key_that_is_not_named_stays(tmp_path: Path) -> None:
    toml = '[environment]\nbase_image = "a"\nprivileged = true\n[verifier]\nscript = "b"\n[oracle]\nof = 1\n'
    write(tmp_path / "set" / "word", {**HARBOR, "task.toml": toml})
    found = imported("harbor", tmp_path / "set", tmp_path / "to", *moves("environment.base_image"))
    assert all(
        key in found.run["word"] for key in ("[environment].privileged", "[verifier].script", "[oracle]")
    )
    assert found.notes["word"] == (
        "moved below [metadata], where they have no effect: [environment].base_image; keys that are not known can be moved below [metadata], "
        "where they have no effect: --move-key environment.privileged --move-key verifier.script --move-key oracle"
    )


@pytest.mark.parametrize("key", ["a.", "zz.a", "environment.a.b", "metadata.a"])
def test_text_that_names_no_key_to_move_is_refused(tmp_path: Path, suite: Path, key: str) -> None:
    words = refused("harbor", suite, tmp_path / "to", "--move-key", key)
    assert "names no key: write KEY, or TABLE.KEY with one of task, agent" in words


def test_settings_that_a_program_cannot_write_are_refused_by_the_key(tmp_path: Path) -> None:
    toml = "environment.foo = 1\nmetadata.k = 1\nagent = {timeout_sec = 3.0, zork = 1}\n"
    write(tmp_path / "set" / "word", {**HARBOR, "task.toml": toml})
    found = imported("harbor", tmp_path / "set", tmp_path / "to", *moves("environment.foo", "agent.zork"))
    assert found.reasons["word"] == (
        "task.toml: [environment].foo, [agent].zork cannot be moved by a program: move them below [metadata]"
    )


def test_a_task_whose_keys_are_known_stays_as_it_is_where_unknown_ones_would_be_moved(
    suite: Path, tmp_path: Path
) -> None:
    write(suite / "broken", {**HARBOR, "task.toml": "[a"})
    found = imported("harbor", suite, tmp_path / "to", *moves("zz"))
    assert found.outcomes == {"word": "imported", "other": "imported", "broken": "refused"}
    assert (
        load(tmp_path / "to" / "other").content_hash == load(suite / "other").content_hash
        and found.notes == {}
    )
