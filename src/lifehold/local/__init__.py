"""Locks on files. Every system call goes through one seam, `files`."""
