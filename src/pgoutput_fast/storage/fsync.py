"""The system calls that make files and directories durable."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

__all__ = ["check_file_mode", "directory_mode", "fsync", "make_directory", "publish"]

# The errors of `link` on file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def fsync(path: str | os.PathLike[str]) -> None:
    """Makes a file, or the entries of a directory, durable.

    Raises:
        OSError: if it cannot be opened, or if the disk reports an error.

    >>> fsync(".")
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Creates a directory and its parents durably.

    An existing directory may be from a process that was killed or whose fsync failed. So this function also fsyncs the
    parents of existing directories, if this process may read them.

    Args:
        path: the directory.
        mode: permissions of the directory if it is created here; the umask applies. Parents get 0o777 and the umask.

    Raises:
        FileExistsError, NotADirectoryError: if the path, or a parent, is a file and not a directory.
        OSError: if it cannot be created, or if the disk reports an error.
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
            # Some existing directories cannot be fsynced at all, such as read-only ones.
            if made or problem.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise


def check_file_mode(file_mode: int | None) -> int | None:
    """Returns `file_mode` if it is valid for files.

    Raises:
        ValueError: if it is not a number, has other bits than permissions to read and write, or lacks the owner's
            permissions to read and write.

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
            f"file_mode may only have permissions to read and write, and must have both for the owner, such as 0o640; "
            f"not {file_mode!r}"
        )
    return file_mode


def directory_mode(file_mode: int | None) -> int:
    """The permissions of a directory for files of this mode: users who may read the files may list it.

    >>> oct(directory_mode(0o640)), oct(directory_mode(None))
    ('0o750', '0o777')
    """
    return 0o777 if file_mode is None else file_mode | (file_mode & 0o444) >> 2


def publish(hidden: Path, target: Path) -> None:
    """Renames a finished file atomically: of several processes with the same target, only one succeeds.

    This does not fsync the directory.

    Args:
        hidden: the hidden name of the file, in the directory of `target`. It no longer exists afterwards.
        target: the new name.

    Raises:
        FileExistsError: if the target exists. Then both files are unchanged.
        OSError: if the file cannot be renamed.
    """
    try:
        os.link(hidden, target)
    except FileExistsError:
        # A network file system may create the link, lose the reply and retry.
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
    """As `publish`, with a rename. A rename replaces a file, so processes check for one under a lock."""
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The lock ends with the descriptor, even if the process is killed, and needs no lock file.
        fcntl.flock(directory, fcntl.LOCK_EX)
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists")
        os.rename(hidden, target)
    finally:
        os.close(directory)
