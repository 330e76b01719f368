/* LD_PRELOAD: the day's clock (CLOCK_REALTIME, time, gettimeofday) is ahead by the seconds that the file RIG_CLOCK_FAULT
 * holds; the monotonic clock is left alone, as when a head unit learns the time from GNSS or a phone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead_s(void) {
  const char *control = getenv("RIG_CLOCK_FAULT");
  if (!control) return 0;
  int saved = errno, fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
  char text[32] = {0};
  if (fd >= 0) {
    syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
  }
  errno = saved;
  return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, now);
  if (result == 0 && id == CLOCK_REALTIME) now->tv_sec += ahead_s();
  return result;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
