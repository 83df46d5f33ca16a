"""A program that tries each way to preallocate space, then `posix_fallocate`, which writes zeros; it prints an answer for each."""

PREALLOCATES = """
import ctypes, errno, fcntl, os, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("big", os.O_RDWR | os.O_CREAT)
allocate = lambda mode: libc.fallocate64(fd, mode, ctypes.c_long(0), ctypes.c_long(1 << 20))
for mode in (0x00, 0x01, 0x10):
    print(errno.errorcode[ctypes.get_errno()] if allocate(mode) else "allocated")
space = struct.pack("hhqqiI16x", 0, 0, 0, 1 << 20, 0, 0)
for request in (0x4030_5828, 0x4030_582A, 0x4030_5839):
    try:
        fcntl.ioctl(fd, request, space)
    except OSError as error:
        print(errno.errorcode[error.errno])
    else:
        print("allocated")
os.posix_fallocate(fd, 0, 1 << 20)
print(os.fstat(fd).st_size >> 20)
"""
PREALLOCATED = ["ENOTSUP"] * 6 + ["1"]  # Python's name for EOPNOTSUPP
