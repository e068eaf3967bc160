/*
 * shim.c - a preloaded library that counts a program's system calls and allocations, logs them, and
 * makes one of them fail (faultlog.h).
 *
 * Calls are counted from the beginning of main, so that what the dynamic linker and the C library
 * do before it has no numbers. Calls inside of the C library (stdio, dlopen) do not come by here.
 */
#include "tests/fault/faultlog.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* The next definition of an interposed function; looked up once. */
#define REAL(name)                                                                                 \
    __extension__({                                                                                \
        static __typeof__(name) *real_##name;                                                      \
        if (!real_##name)                                                                          \
            real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);                             \
        real_##name;                                                                               \
    })

static struct {
    bool armed;
    enum fault_how how;
    long at;
    int log;
    bool all; /* count every allocation */
    struct range {
        uintptr_t begin, end;
    } code[64]; /* whose allocations are counted otherwise */
    int n_code;
} shim = {.log = -1};
static _Atomic long counts[COUNTERS];
static _Atomic bool logging;

static const enum fault_counter counter_of[] = {COUNT_IO,
#define X(id, name, counter) counter,
                                                FAULTS(X)
#undef X
};
static const unsigned faults_of[] = {
#define X(id, name, faults) faults,
    CALLS(X)
#undef X
};

/* ---- start and end --------------------------------------------------------------------------- */

static enum fault_how how_named(const char *name)
{
    static const char *const names[] = {"",
#define X(id, name, counter) name,
                                        FAULTS(X)
#undef X
    };
    for (int i = 1; name && i < HOW_END; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum fault_how)i;
    return HOW_NONE;
}

/* The code of the program and of its libraries, but for those that do not survive a failed
 * allocation: HDF5 and what it needs crash, the dynamic linker and what it loads later (OpenBLAS)
 * end the process. The C library allocates for them too. */
static void find_code(void)
{
    static const char *const left_out[] = {"libhdf5",  "libsz",    "libaec",  "libcurl",
                                           "ld-linux", "/libc.so", "/shim.so"};
    char line[1024], path[512];
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f) && shim.n_code < 64) {
        unsigned long begin, end;
        bool counted = sscanf(line, "%lx-%lx r-x%*s %*s %*s %*s %511s", &begin, &end, path) == 3 &&
                       path[0] == '/';
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
            counted = counted && !strstr(path, left_out[i]);
        if (counted)
            shim.code[shim.n_code++] = (struct range){begin, end};
    }
    if (f)
        fclose(f);
}

static void arm(void)
{
    char exe[4096];
    const char *wanted = getenv(FAULT_EXE), *log = getenv(FAULT_LOG), *at = getenv(FAULT_AT);
    const char *scope = getenv(FAULT_SCOPE);
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (!wanted || n < 0)
        return;
    exe[n] = '\0';
    if (strcmp(exe, wanted) != 0)
        return;
    find_code();
    shim.all = scope && strcmp(scope, "all") == 0;
    shim.how = how_named(getenv(FAULT_HOW));
    shim.at = at ? atol(at) : 0;
    if (log)
        shim.log = (int)syscall(SYS_openat, AT_FDCWD, log,
                                O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    shim.armed = true;
}

typedef int main_fn(int, char **, char **);
static main_fn *real_main;

static int wrapped_main(int argc, char **argv, char **env)
{
    arm();
    return real_main(argc, argv, env);
}

EXPORT int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
EXPORT int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    real_main = program;
    return REAL(__libc_start_main)(wrapped_main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void put(const void *data, size_t n)
{
    if (n && syscall(SYS_write, shim.log, data, n) != (long)n)
        _exit(99); /* a log that lacks entries would prove nothing */
}

static void log_entry(struct fault_entry e, const char *path, const char *to, const void *data)
{
    if (shim.log < 0)
        return;
    while (atomic_exchange(&logging, true)) {
    }
    e.path_len = path ? (int32_t)strlen(path) : 0;
    e.to_len = to ? (int32_t)strlen(to) : 0;
    for (int i = 0; i < COUNTERS; i++)
        e.counts[i] = counts[i];
    put(&e, sizeof e);
    put(path, (size_t)e.path_len);
    put(to, (size_t)e.to_len);
    put(data, (size_t)e.data_len);
    atomic_store(&logging, false);
}

__attribute__((destructor)) static void end_log(void)
{
    if (shim.armed)
        log_entry((struct fault_entry){.call = CALL_END}, NULL, NULL, NULL);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void die(void)
{
    syscall(SYS_kill, (long)getpid(), SIGKILL);
    for (;;)
        pause();
}

/* One call that can be struck. */
struct call {
    enum fault_call kind;
    long number; /* 0: not counted */
    int error;   /* errno to fail with, 0: none */
    bool half;   /* move half of the bytes */
};

static bool strikes(enum fault_counter counter, long *number)
{
    *number = atomic_fetch_add(&counts[counter], 1) + 1;
    return shim.how && counter_of[shim.how] == counter && *number == shim.at;
}

/* Standard streams are not counted: the driver reads them. */
static struct call begin(enum fault_call kind, int fd)
{
    static const int errors[HOW_END] = {
        [HOW_EIO] = EIO, [HOW_ENOSPC] = ENOSPC, [HOW_EINTR] = EINTR, [HOW_EMFILE] = EMFILE};
    struct call c = {.kind = kind};
    if (!shim.armed || (fd >= 0 && fd <= 2) || !strikes(COUNT_IO, &c.number) ||
        !(faults_of[kind] & B(shim.how)))
        return c;
    if (shim.how == HOW_KILL)
        die();
    c.error = errors[shim.how];
    c.half = shim.how == HOW_SHORT || shim.how == HOW_TORN;
    return c;
}

/* Log the call, and end the process where the fault says so. Keeps errno. */
static void finish(struct call c, long result, int fd, int64_t at, const char *path, const char *to,
                   const void *data)
{
    int saved = errno;
    struct stat st = {0};
    if (!c.number)
        return;
    if (shim.log >= 0 && fd >= 0)
        syscall(SYS_fstat, fd, &st);
    log_entry((struct fault_entry){.call = c.kind,
                                   .number = (int32_t)c.number,
                                   .result = result < 0 ? -1 : 0,
                                   .data_len = data && result > 0 ? (int32_t)result : 0,
                                   .file = (int64_t)st.st_ino,
                                   .at = at},
              path, to, data);
    if (shim.how && counter_of[shim.how] == COUNT_IO && c.number == shim.at &&
        (shim.how == HOW_AFTER || (shim.how == HOW_TORN && c.kind == CALL_WRITE)))
        die();
    errno = saved;
}

static long failed(const struct call *c)
{
    errno = c->error;
    return -1;
}

static size_t part_of(const struct call *c, size_t n)
{
    return c->half && n > 1 ? n / 2 : n;
}

/* Path of a name in an open directory, for the log. */
static const char *path_in(int dir, const char *name, char path[4096])
{
    char link[64], base[2048];
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n =
        dir == AT_FDCWD || name[0] == '/' ? -1 : REAL(readlink)(link, base, sizeof base - 1);
    if (n < 0)
        return name;
    base[n] = '\0';
    snprintf(path, 4096, "%s/%s", base, name);
    return path;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int open_as(int dir, const char *name, int flags, mode_t mode)
{
    char path[4096];
    bool creates = flags & (O_CREAT | O_TRUNC);
    struct call c = begin(creates ? CALL_CREATE : CALL_OPEN, -1);
    int fd = (int)(c.error ? failed(&c) : syscall(SYS_openat, dir, name, flags, mode));
    finish(c, fd, fd, flags & O_TRUNC ? 0 : -1, path_in(dir, name, path), NULL, NULL);
    return fd;
}

#define MODE_OF(flags, mode)                                                                       \
    mode_t mode = 0;                                                                               \
    if ((flags)&O_CREAT) {                                                                         \
        va_list ap;                                                                                \
        va_start(ap, flags);                                                                       \
        mode = va_arg(ap, mode_t);                                                                 \
        va_end(ap);                                                                                \
    }
#define OPEN(function)                                                                             \
    EXPORT int function(const char *path, int flags, ...)                                          \
    {                                                                                              \
        MODE_OF(flags, mode)                                                                       \
        return open_as(AT_FDCWD, path, flags, mode);                                               \
    }
#define OPENAT(function)                                                                           \
    EXPORT int function(int dir, const char *path, int flags, ...)                                 \
    {                                                                                              \
        MODE_OF(flags, mode)                                                                       \
        return open_as(dir, path, flags, mode);                                                    \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

EXPORT int close(int fd)
{
    struct call c = begin(CALL_CLOSE, fd);
    int rc = (int)syscall(SYS_close, fd);
    if (c.error)
        rc = (int)failed(&c);
    finish(c, rc, -1, 0, NULL, NULL, NULL);
    return rc;
}

EXPORT ssize_t read(int fd, void *data, size_t n)
{
    struct call c = begin(CALL_READ, fd);
    ssize_t got = c.error ? failed(&c) : syscall(SYS_read, fd, data, part_of(&c, n));
    finish(c, got, -1, 0, NULL, NULL, NULL);
    return got;
}

static ssize_t read_at(int fd, void *data, size_t n, off_t at)
{
    struct call c = begin(CALL_READ, fd);
    ssize_t got = c.error ? failed(&c) : syscall(SYS_pread64, fd, data, part_of(&c, n), at);
    finish(c, got, -1, 0, NULL, NULL, NULL);
    return got;
}
EXPORT ssize_t pread(int fd, void *data, size_t n, off_t at)
{
    return read_at(fd, data, n, at);
}
EXPORT ssize_t pread64(int fd, void *data, size_t n, off_t at)
{
    return read_at(fd, data, n, at);
}

EXPORT ssize_t write(int fd, const void *data, size_t n)
{
    struct call c = begin(CALL_WRITE, fd);
    ssize_t put = c.error ? failed(&c) : syscall(SYS_write, fd, data, part_of(&c, n));
    int saved = errno;
    long end = c.number && shim.log >= 0 ? syscall(SYS_lseek, fd, 0, SEEK_CUR) : 0;
    errno = saved;
    finish(c, put, fd, end - (put > 0 ? put : 0), NULL, NULL, data);
    return put;
}

static ssize_t write_at(int fd, const void *data, size_t n, off_t at)
{
    struct call c = begin(CALL_WRITE, fd);
    ssize_t put = c.error ? failed(&c) : syscall(SYS_pwrite64, fd, data, part_of(&c, n), at);
    finish(c, put, fd, at, NULL, NULL, data);
    return put;
}
EXPORT ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    return write_at(fd, data, n, at);
}
EXPORT ssize_t pwrite64(int fd, const void *data, size_t n, off_t at)
{
    return write_at(fd, data, n, at);
}

/* Functions that take a descriptor, names or both and answer 0 or -1. */
#define SIMPLE(kind, function, params, args, fd, at, path, to)                                     \
    EXPORT int function params                                                                     \
    {                                                                                              \
        struct call c = begin(kind, fd);                                                           \
        int rc = (int)(c.error ? failed(&c) : REAL(function) args);                                \
        finish(c, rc, fd, at, path, to, NULL);                                                     \
        return rc;                                                                                 \
    }
SIMPLE(CALL_SYNC, fsync, (int fd), (fd), fd, 0, NULL, NULL)
SIMPLE(CALL_SYNC, fdatasync, (int fd), (fd), fd, 0, NULL, NULL)
SIMPLE(CALL_TRUNCATE, ftruncate, (int fd, off_t n), (fd, n), fd, n, NULL, NULL)
SIMPLE(CALL_TRUNCATE, ftruncate64, (int fd, off_t n), (fd, n), fd, n, NULL, NULL)
SIMPLE(CALL_RESERVE, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), fd,
       at + n, NULL, NULL)
SIMPLE(CALL_RESERVE, fallocate64, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), fd,
       at + n, NULL, NULL)
SIMPLE(CALL_RENAME, rename, (const char *from, const char *to), (from, to), -1, 0, from, to)
SIMPLE(CALL_LINK, link, (const char *from, const char *to), (from, to), -1, 0, from, to)
SIMPLE(CALL_UNLINK, unlink, (const char *path), (path), -1, 0, path, NULL)
SIMPLE(CALL_UNLINK, remove, (const char *path), (path), -1, 0, path, NULL)
SIMPLE(CALL_MKDIR, mkdir, (const char *path, mode_t mode), (path, mode), -1, 0, path, NULL)
SIMPLE(CALL_STAT, stat, (const char *restrict path, struct stat *restrict st), (path, st), -1, 0,
       path, NULL)
SIMPLE(CALL_STAT, stat64, (const char *restrict path, struct stat64 *restrict st), (path, st), -1,
       0, path, NULL)
SIMPLE(CALL_STAT, fstat, (int fd, struct stat *st), (fd, st), fd, 0, NULL, NULL)
SIMPLE(CALL_STAT, fstat64, (int fd, struct stat64 *st), (fd, st), fd, 0, NULL, NULL)
SIMPLE(CALL_STAT, access, (const char *path, int mode), (path, mode), -1, 0, path, NULL)
SIMPLE(CALL_STAT, statvfs, (const char *restrict path, struct statvfs *restrict st), (path, st), -1,
       0, path, NULL)
SIMPLE(CALL_STAT, statvfs64, (const char *restrict path, struct statvfs64 *restrict st), (path, st),
       -1, 0, path, NULL)
SIMPLE(CALL_LOCK, flock, (int fd, int how), (fd, how), fd, 0, NULL, NULL)
SIMPLE(CALL_LIST, scandir,
       (const char *restrict dir, struct dirent ***restrict list,
        int (*filter)(const struct dirent *),
        int (*compare)(const struct dirent **, const struct dirent **)),
       (dir, list, filter, compare), -1, 0, dir, NULL)

EXPORT int unlinkat(int dir, const char *name, int flags)
{
    char path[4096];
    struct call c = begin(CALL_UNLINK, -1);
    int rc = (int)(c.error ? failed(&c) : REAL(unlinkat)(dir, name, flags));
    finish(c, rc, -1, 0, path_in(dir, name, path), NULL, NULL);
    return rc;
}

EXPORT DIR *opendir(const char *path)
{
    struct call c = begin(CALL_LIST, -1);
    DIR *d = c.error ? NULL : REAL(opendir)(path);
    if (c.error)
        errno = c.error;
    finish(c, d ? 0 : -1, -1, 0, path, NULL, NULL);
    return d;
}

static FILE *stream(FILE *(*real)(const char *, const char *), const char *path, const char *mode)
{
    struct call c = begin(CALL_OPEN, -1);
    FILE *f = c.error ? NULL : real(path, mode);
    if (c.error)
        errno = c.error;
    finish(c, f ? 0 : -1, -1, 0, path, NULL, NULL);
    return f;
}
EXPORT FILE *fopen(const char *path, const char *mode)
{
    return stream(REAL(fopen), path, mode);
}
EXPORT FILE *fopen64(const char *path, const char *mode)
{
    return stream(REAL(fopen64), path, mode);
}

static int control(int fd, int command, long argument)
{
    bool copies = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
    bool locks = command == F_OFD_SETLK || command == F_OFD_GETLK || command == F_SETLK;
    struct call c = {0};
    if (copies || locks)
        c = begin(copies ? CALL_COPY : CALL_LOCK, -1);
    int rc = (int)(c.error ? failed(&c) : syscall(SYS_fcntl, fd, command, argument));
    finish(c, rc, -1, 0, NULL, NULL, NULL);
    return rc;
}
#define CONTROL(function)                                                                          \
    EXPORT int function(int fd, int command, ...)                                                  \
    {                                                                                              \
        va_list ap;                                                                                \
        va_start(ap, command);                                                                     \
        long argument = va_arg(ap, long);                                                          \
        va_end(ap);                                                                                \
        return control(fd, command, argument);                                                     \
    }
CONTROL(fcntl)
CONTROL(fcntl64)

/* ---- memory ---------------------------------------------------------------------------------- */

static bool no_memory(void *caller)
{
    long number;
    uintptr_t at = (uintptr_t)caller;
    bool counted = shim.all;
    for (int i = 0; !counted && i < shim.n_code; i++)
        counted = at >= shim.code[i].begin && at < shim.code[i].end;
    if (!shim.armed || !counted || !strikes(COUNT_MEMORY, &number))
        return false;
    errno = ENOMEM;
    return true;
}
#define ALLOCATOR(type, function, params, args)                                                    \
    EXPORT type *function params                                                                   \
    {                                                                                              \
        return no_memory(__builtin_return_address(0)) ? NULL : REAL(function) args;                \
    }
ALLOCATOR(void, malloc, (size_t n), (n))
ALLOCATOR(void, calloc, (size_t n, size_t size), (n, size))
ALLOCATOR(void, realloc, (void *old, size_t n), (old, n))
ALLOCATOR(void, aligned_alloc, (size_t alignment, size_t n), (alignment, n))
ALLOCATOR(char, strdup, (const char *s), (s))

EXPORT int posix_memalign(void **out, size_t alignment, size_t n)
{
    return no_memory(__builtin_return_address(0)) ? ENOMEM
                                                  : REAL(posix_memalign)(out, alignment, n);
}

EXPORT void *mmap(void *where, size_t n, int access, int flags, int fd, off_t at)
{
    void *p = MAP_FAILED;
    if (!no_memory(__builtin_return_address(0)))
        p = (void *)syscall(SYS_mmap, where, n, access, flags, fd, at); /* NOLINT */
    return p;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Seconds to add from the struck reading on. */
static long clock_step(void)
{
    static _Atomic long step;
    long number;
    if (shim.armed && strikes(COUNT_TIME, &number))
        step = shim.how == HOW_FORWARD ? 86400 : -86400;
    return step;
}

/* A monotonic clock does not step; that of the day does. */
EXPORT int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME)
        t->tv_sec += clock_step();
    return rc;
}

EXPORT time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}
