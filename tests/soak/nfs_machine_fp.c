/* User Mode Linux 6.1 hands ptrace(PTRACE_SETREGSET, NT_X86_XSTATE) the 2.7 KiB that it knows of a
 * processor's state. A processor with more of it (AMX: 11 KiB) refuses less than the whole, and the
 * guest dies with its first process. Preloaded, this adds the part that it left out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NT_X86_XSTATE 0x202

static char whole[1 << 16];

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;
	va_start(rest, request);
	long pid = va_arg(rest, long);
	void *address = va_arg(rest, void *);
	void *data = va_arg(rest, void *);
	va_end(rest);

	if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
		struct iovec *some = data, all = {whole, sizeof whole};
		if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) < 0)
			return -1;
		memcpy(whole, some->iov_base, some->iov_len < all.iov_len ? some->iov_len : all.iov_len);
		return syscall(SYS_ptrace, request, pid, address, &all);
	}
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		long word; /* the system call stores what the C library returns */
		if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
			return -1;
		errno = 0;
		return word;
	}
	return syscall(SYS_ptrace, request, pid, address, data);
}
