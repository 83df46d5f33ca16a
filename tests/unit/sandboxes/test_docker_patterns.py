"""Names with wildcards as Docker reads them: Go's rules for sources of COPY, and the rules of an ignore file."""

import pytest

from sandboxes.docker_patterns import IgnoreFile, is_valid, names


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("abc", "abc", True),
        ("*", "abc", True),
        ("*c", "abc", True),
        ("a*", "a", True),
        ("a*", "ab/c", False),
        ("a*/b", "abc/b", True),
        ("a*b*c*d*e*/f", "axbxcxdxexxx/f", True),
        ("a*b*c*d*e*/f", "axbxcxdxexxx/fff", False),
        ("a*b?c*x", "abxbbxdbxebxczzx", True),
        ("a*b?c*x", "abxbbxdbxebxczzy", False),
        ("ab[c]", "abc", True),
        ("ab[b-d]", "abc", True),
        ("ab[^c]", "abc", False),
        ("ab[^e-g]", "abc", True),
        ("ab[!c]", "ab!", True),
        ("a[!c]", "ab", False),
        ("[[]id]/page.tsx", "[id]/page.tsx", True),
        ("[id]/page.tsx", "[id]/page.tsx", False),
        ("\\[id\\]", "[id]", True),
        ("[\\-x]", "-", True),
        ("[\\]a]", "]", True),
        ("[b-a]", "a", False),
        ("{a,b}", "a", False),
        ("{a,b}", "{a,b}", True),
        ("a?b", "a\nb", True),
        ("*x", "xxx", True),
        ("a*a", "a", False),
        ("**", "a", True),
    ],
)
def test_a_source_names_the_files_that_go_matches(pattern: str, path: str, matches: bool) -> None:
    assert is_valid(pattern) and names(pattern, path) is matches


@pytest.mark.parametrize("pattern", ["[]a]", "[-]", "[x-]", "[-x]", "[", "[a", "[^", "a[", "a\\", "a/[^bc"])
def test_a_pattern_that_go_refuses_names_nothing(pattern: str) -> None:
    assert not is_valid(pattern) and not names(pattern, pattern)


@pytest.mark.parametrize(
    ("text", "out", "kept"),
    [
        ("", [], ["a"]),
        ("# a\n\n  b  \r\n", ["b", "b/c"], ["a", "# a"]),
        ("\ufeffa\n", ["a"], ["b"]),
        ("/a/./b/\n", ["a/b", "a/b/c"], ["a", "b"]),
        ("../a\n.\n/\n", [], ["a"]),
        ("*.md\n!README.md\n", ["a.md"], ["README.md", "d/a.md"]),
        ("*.md\n!README*.md\nREADME-secret.md\n", ["a.md", "README-secret.md"], ["README.md"]),
        ("*\n! src\nsrc/*.log\n", ["a", "src/x.log"], ["src", "src/a", "src/d/x.log"]),
        ("**/x\n", ["x", "a/x", "a/b/x", "a/x/y"], ["ax", "a/bx"]),
        ("a/**\n", ["a/b", "a/b/c"], ["a"]),
        ("a/**/b\n", ["a/b", "a/x/b", "a/x/y/b"], ["a", "a/bx", "b"]),
        ("**\n!**/*.py\n", ["a", "d/b"], ["a.py", "d/e/b.py"]),
        ("**.py\n", ["a.py", "d/a.py", ".py"], ["a.pyc"]),
        ("**a*\nd/**b\n", ["a", "x/ab", "d/b", "d/e/b"], ["xa", "d/xb"]),
        ("dir**\n", ["dir", "dirx", "dir/a", "dirx/a"], ["a/dir"]),
        ("**/*/**\n", ["a/b"], ["a"]),
        ("[ab].c\n[^a]\n", ["a.c", "b.c", "b"], ["a", "c.c"]),
        ("{a}\na+\n", ["{a}", "a+"], ["a", "aa"]),
    ],
)
def test_an_ignore_file_leaves_out_what_docker_leaves_out(text: str, out: list[str], kept: list[str]) -> None:
    found = IgnoreFile(text)
    assert not found.unread
    assert [path for path in (*out, *kept) if found.leaves_out(path)] == out


@pytest.mark.parametrize("line", ["a**b", "[a", "x/a**/b", "\\***"])
def test_a_line_that_is_not_read_leaves_out_nothing_and_takes_back_all(line: str) -> None:
    assert IgnoreFile(f"{line}\n").unread == (line,)
    assert not IgnoreFile(f"*\n!{line}\n").leaves_out("other")
    assert IgnoreFile(f"!{line}\n*\n{line}\n").leaves_out("other")


def test_patterns_that_could_match_in_countless_ways_are_decided() -> None:
    many = IgnoreFile("**/" * 300 + "x\n" + "*a" * 500 + "*b\n")
    assert not many.leaves_out("/".join(["a" * 200] * 5))
    assert not names("*a" * 300 + "*b", "a" * 1000)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("a**/b", "let ** stand for a whole part"),
        ("**/\\#x", "take ** or the backslash away"),
        ("[a-", "end its brackets"),
        ("a\\", "end its brackets, and write something behind its last backslash"),
        ("**/a*", ""),
    ],
)
def test_a_pattern_that_is_not_read_has_its_own_remedy(line: str, remedy: str) -> None:
    found = IgnoreFile(f"{line}\n").remedy
    assert found.startswith(remedy) and bool(found) == bool(remedy)
