"""The system call filter, by a small machine that runs it as the kernel does, for every architecture that has one."""

import errno
import platform
import struct
import subprocess
import sys

import pytest

from sandboxes import seccomp

ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
ALLOW = 0x7FFF_0000
EPERM, ENOSYS, EOPNOTSUPP = (0x5_0000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP))
machines = pytest.mark.parametrize("machine", ARCHITECTURES)


def answer(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """The filter's answer to one call."""
    code = seccomp.program(machine)
    assert code is not None
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *padded)
    instructions = list(struct.iter_unpack("<HBBI", code))
    at = accumulator = 0
    while True:
        operation, yes, no, value = instructions[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x45:
                at += yes if accumulator & value else no
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"no such operation: {operation:#x}")


@machines
def test_every_listed_call_is_refused_and_every_other_one_allowed(machine: str) -> None:
    column = list(ARCHITECTURES).index(machine)
    denied = {pair[column] for pair in seccomp.DENIED.values() if pair[column]}
    absent = {pair[column] for pair in seccomp.ABSENT.values() if pair[column]}
    checked = {pair[column] for pair in seccomp.CHECKED.values()}
    for number in range(600):
        if number not in checked:
            wanted = EPERM if number in denied else ENOSYS if number in absent else ALLOW
            assert answer(machine, number) == wanted, number
    assert len(denied) > 40 and not denied & absent and not (denied | absent) & checked


@machines
def test_namespaces_families_and_terminal_input_are_refused_by_their_arguments(machine: str) -> None:
    clone, socket, ioctl = (seccomp.numbers(machine)[name] for name in ("clone", "socket", "ioctl"))
    for flag in (0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        assert answer(machine, clone, flag | 17) == EPERM
    assert answer(machine, clone, 0x003D_0F00) == ALLOW, "a thread"
    assert answer(machine, clone, 0x0000_4111) == ALLOW, "vfork"
    families = [family for family in range(50) if answer(machine, socket, family) == ALLOW]
    assert families == [1, 2, 10, 16], "AF_UNIX, AF_INET, AF_INET6, AF_NETLINK"
    refused = [request for request in range(0x5400, 0x5500) if answer(machine, ioctl, 0, request) == EPERM]
    assert refused == [0x5412, 0x541C], "TIOCSTI, TIOCLINUX"


@machines
def test_a_thread_shares_the_descriptors_of_its_process(machine: str) -> None:
    clone, close_range = (seccomp.numbers(machine)[name] for name in ("clone", "close_range"))
    assert answer(machine, clone, 0x003D_0B00) == EPERM, "a thread without CLONE_FILES"
    assert answer(machine, close_range, 3, 0xFFFF_FFFF, 2) == ENOSYS, "CLOSE_RANGE_UNSHARE"
    assert answer(machine, close_range, 3, 0xFFFF_FFFF, 4) == ALLOW, "CLOSE_RANGE_CLOEXEC"


@machines
def test_space_can_be_given_back_and_not_preallocated(machine: str) -> None:
    fallocate, ioctl = (seccomp.numbers(machine)[name] for name in ("fallocate", "ioctl"))
    allowed = [mode for mode in range(0x100) if answer(machine, fallocate, 3, mode, 0, 1 << 30) == ALLOW]
    assert {0x03, 0x08} <= set(allowed) and all(mode & 0x0A for mode in allowed)
    assert answer(machine, fallocate, 3, 0, 0, 1 << 30) == EOPNOTSUPP
    refused = [
        number for number in range(256) if answer(machine, ioctl, 3, 0x4030_5800 | number) == EOPNOTSUPP
    ]
    assert refused == [40, 42, 57], "FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE"


@machines
def test_calls_of_another_architecture_do_not_exist(machine: str) -> None:
    for architecture in {*ARCHITECTURES.values(), 0x4000_0003} - {ARCHITECTURES[machine]}:
        assert answer(machine, 20, architecture=architecture) == ENOSYS
    assert answer("x86_64", 0x4000_0000 | 39) == ENOSYS, "x32"


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert seccomp.program("s390x") is None and seccomp.numbers("s390x") == {}


def test_the_personality_of_the_starter_does_not_take_the_filter_away() -> None:
    script = (
        "import ctypes, platform; ctypes.CDLL(None).personality(8)\n"  # PER_LINUX32
        "from sandboxes import seccomp; print(platform.machine(), len(seccomp.program() or b''))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    machine, length = shown.split()
    expected = seccomp.program()
    assert expected is not None and machine != platform.machine() and int(length) == len(expected)
