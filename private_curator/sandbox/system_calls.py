"""The worker's filter of system calls: seccomp, installed for every thread, kept by whatever follows.

A list of what is forbidden and not of what is allowed: torch and its libraries use many harmless calls, differently in
each version. Forbidden is what leads out of the process: sockets, programs, children, other processes' memory, new or
changed files, the kernel's own machinery (io_uring could open sockets past the filter).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_SECCOMP_SET_MODE_FILTER, _FLAG_ALL_THREADS = 1, 1
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_CLONE_THREAD = 0x10000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Numbers of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h).
_COMMON = {"pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "pidfd_getfd": 438}
_X86_64 = {
    "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "accept4": 288,
    "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "ptrace": 101, "process_vm_readv": 310,
    "process_vm_writev": 311, "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "add_key": 248, "request_key": 249, "keyctl": 250,
    "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "chmod": 90,
    "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "mknod": 133, "truncate": 76, "setxattr": 188,
    "mkdirat": 258, "mknodat": 259, "fchownat": 260, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "fchmodat": 268, "renameat2": 316, "open_by_handle_at": 304,
    "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166, "init_module": 175, "finit_module": 313,
    "kexec_load": 246, "unshare": 272, "setns": 308, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202, "connect": 203, "accept4": 242,
    "execve": 221, "execveat": 281, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "tkill": 130,
    "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
    "add_key": 217, "request_key": 218, "keyctl": 219, "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36,
    "linkat": 37, "renameat": 38, "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45, "chroot": 51,
    "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "setxattr": 5, "renameat2": 276,
    "open_by_handle_at": 265, "unshare": 97, "kexec_load": 104, "init_module": 105, "finit_module": 273,
    "setns": 268, "perf_event_open": 241, "bpf": 280, "userfaultfd": 282,
}  # fmt: skip
# machine -> (audit architecture, forbidden, then the calls whose arguments decide)
_TABLES = {
    "x86_64": (0xC000003E, _X86_64, {"open": 2, "openat": 257, "clone": 56, "kill": 62, "tgkill": 234}),
    "aarch64": (0xC00000B7, _AARCH64, {"openat": 56, "clone": 220, "kill": 129, "tgkill": 131}),
}
_CLONE3, _OPENAT2 = 435, 437  # on both; absent in the worker's eyes: the C library then uses clone and openat


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_system_calls(*, writing: bool) -> bool:
    """Installs the filter in every thread of this process.

    Args:
        writing: whether files may be opened for writing; a GPU's device files are.

    Returns:
        Whether this machine and its kernel have it.
    """
    table = _TABLES.get(platform.machine())
    if table is None:
        return False
    code = _filter(*table, writing=writing)
    program = _Program(len(code) // 8, code)
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]  # seccomp(2)
    if _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _FLAG_ALL_THREADS, ctypes.byref(program)) == 0:
        return True
    return bool(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _filter(architecture: int, forbidden: dict[str, int], decided: dict[str, int], *, writing: bool) -> bytes:
    """Berkeley packet filter code over struct seccomp_data; each rule ends or falls through to the next."""
    refuse, absent = _ERRNO | errno.EACCES, _ERRNO | errno.ENOSYS
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_JUMP_AT_LEAST, 0x40000000, 0, 1),  # x86's second table
        _step(_RETURN, _KILL),
    ]
    for number in sorted({*forbidden.values(), *_COMMON.values()}):
        code += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, refuse)]
    for number in (_CLONE3, _OPENAT2):
        code += [_step(_JUMP_EQUAL, number, 0, 1), _step(_RETURN, absent)]
    code += _when(decided["clone"], 0, _JUMP_ANY_BIT, _CLONE_THREAD, met=_ALLOW, otherwise=refuse)
    for name in ("kill", "tgkill"):  # abort() signals itself
        code += _when(decided[name], 0, _JUMP_EQUAL, os.getpid(), met=_ALLOW, otherwise=refuse)
    for name, argument in (("open", 1), ("openat", 2)):
        if name in decided and not writing:
            code += _when(decided[name], argument, _JUMP_ANY_BIT, _WRITING, met=refuse, otherwise=_ALLOW)
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _when(number: int, argument: int, test: int, value: int, *, met: int, otherwise: int) -> list[bytes]:
    """For one call: looks at the low half of one argument."""
    return [
        _step(_JUMP_EQUAL, number, 0, 4),
        _step(_LOAD, 16 + 8 * argument),
        _step(test, value, 0, 1),
        _step(_RETURN, met),
        _step(_RETURN, otherwise),
    ]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
