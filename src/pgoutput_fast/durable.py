"""What has been written stays: the calls that files and directories need for it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

__all__ = ["check_file_mode", "directory_mode", "fsync", "make_directory", "publish"]

# What `link` says on file systems that have no hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def fsync(path: str | os.PathLike[str]) -> None:
    """Has a file, or a directory's entries, survive a crash of the machine.

    Raises:
        OSError: if it cannot be opened, or the disk refuses.

    >>> fsync(".")
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Makes a directory with its parents, and has all of them survive a crash of the machine.

    A directory that is there may be one that a killed process made, or one of which an fsync failed. So the parents
    of those are fsynced, too, as far as this process may read them.

    Args:
        path: the directory.
        mode: permissions of a directory that is made here, before the umask is applied. Parents get the usual ones.

    Raises:
        FileExistsError, NotADirectoryError: if something that is no directory is in the way.
        OSError: if it cannot be made, or the disk refuses.
    """
    directory = Path(path).absolute()
    for each in [*reversed(directory.parents), directory][1:]:
        made = False
        if not each.is_dir():
            try:
                each.mkdir(mode if each == directory else 0o777)
                made = True
            except FileExistsError:
                if not each.is_dir():
                    raise
        try:
            fsync(each.parent)
        except PermissionError:
            if made:
                os.sync()
        except OSError as problem:
            # Of directories that were there, some cannot be fsynced at all, such as those that only can be read.
            if made or problem.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise


def check_file_mode(file_mode: int | None) -> int | None:
    """The same, if files can be made with it.

    Raises:
        ValueError: if it is no number of permissions to read and write, or leaves their owner without those.

    >>> check_file_mode(0o640) == 0o640
    True
    """
    if file_mode is not None and (
        isinstance(file_mode, bool)
        or not isinstance(file_mode, int)
        or file_mode & ~0o666
        or file_mode & 0o600 != 0o600
    ):
        raise ValueError(
            f"file_mode must be permissions to read and write, the owner's among them, such as 0o640; not {file_mode!r}"
        )
    return file_mode


def directory_mode(file_mode: int | None) -> int:
    """What those who may read files need to find them.

    >>> oct(directory_mode(0o640)), oct(directory_mode(None))
    ('0o750', '0o777')
    """
    return 0o777 if file_mode is None else file_mode | (file_mode & 0o444) >> 2


def publish(hidden: Path, target: Path) -> None:
    """Gives a finished file its name. Of several that want the same name at the same time, one gets it.

    The directory is not fsynced here.

    Args:
        hidden: the file, in the directory of `target`; it is gone when this returns.
        target: its name from now on.

    Raises:
        FileExistsError: if there is a file of that name; then it stays as it is, and so does `hidden`.
        OSError: if the file cannot be named so.
    """
    try:
        os.link(hidden, target)
    except FileExistsError:
        # A network file system may do it, lose its answer and try again.
        if not os.path.samefile(hidden, target):
            raise FileExistsError(f"{target} exists") from None
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        _publish_without_links(hidden, target)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(hidden)


def _publish_without_links(hidden: Path, target: Path) -> None:
    """The same by a rename, which would replace a file: so one process at a time looks whether there is one."""
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The lock goes with the descriptor, also when the process is killed. Nothing stays that somebody must remove.
        fcntl.flock(directory, fcntl.LOCK_EX)
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists")
        os.rename(hidden, target)
    finally:
        os.close(directory)
