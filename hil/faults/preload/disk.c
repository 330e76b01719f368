/* LD_PRELOAD: while the file RIG_DISK_FAULT is there, writing below RIG_DISK_UNDER fails with ENOSPC, or with EIO where
 * that file begins with 'i'. Each failure leaves one byte in RIG_DISK_FAULT's sibling ".hits". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int fault_number(void) {
  const char *control = getenv("RIG_DISK_FAULT");
  if (!control) return 0;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char kind = 0;
  syscall(SYS_read, fd, &kind, 1);
  syscall(SYS_close, fd);
  return kind == 'i' ? EIO : ENOSPC;
}

static int below(const char *path) {
  const char *under = getenv("RIG_DISK_UNDER");
  return under && *under && strncmp(path, under, strlen(under)) == 0;
}

static int fails(int number) {
  char hits[PATH_MAX];
  snprintf(hits, sizeof hits, "%s.hits", getenv("RIG_DISK_FAULT"));
  int fd = (int)syscall(SYS_openat, AT_FDCWD, hits, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0) {
    syscall(SYS_write, fd, "x", 1);
    syscall(SYS_close, fd);
  }
  errno = number;
  return 1;
}

static int hit_fd(int fd) {
  int saved = errno, number = fault_number();
  errno = saved;
  if (!number) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) { errno = saved; return 0; }
  path[length] = 0;
  if (!below(path)) { errno = saved; return 0; }
  return fails(number);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) { return hit_fd(fd) ? -1 : REAL(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  return hit_fd(fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  return hit_fd(fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  return hit_fd(fd) ? -1 : REAL(writev)(fd, parts, count);
}
int fsync(int fd) { return hit_fd(fd) ? -1 : REAL(fsync)(fd); }
int ftruncate(int fd, off_t size) { return hit_fd(fd) ? -1 : REAL(ftruncate)(fd, size); }
