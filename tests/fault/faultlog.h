/*
 * faultlog.h - what the driver tells the shim (environment) and what the shim tells the driver (a
 * log of calls).
 */
#pragma once

#include <stdint.h>

/* Environment of the program under test. */
#define FAULT_EXE "FAULT_EXE"     /* only the process that runs this file is counted */
#define FAULT_LOG "FAULT_LOG"     /* file for the log; none without it */
#define FAULT_HOW "FAULT_HOW"     /* name of a fault; none without it */
#define FAULT_AT "FAULT_AT"       /* number of the call that it strikes, from 1 */
#define FAULT_SCOPE "FAULT_SCOPE" /* "all": count every allocation, also of HDF5 */

/* X(identifier, name, counter). A fault strikes call number FAULT_AT of its counter. */
#define FAULTS(X)                                                                                  \
    X(HOW_EIO, "eio", COUNT_IO)                                                                    \
    X(HOW_ENOSPC, "enospc", COUNT_IO)                                                              \
    X(HOW_EINTR, "eintr", COUNT_IO)                                                                \
    X(HOW_EMFILE, "emfile", COUNT_IO)                                                              \
    X(HOW_SHORT, "short", COUNT_IO)       /* half of the bytes */                                  \
    X(HOW_KILL, "kill", COUNT_IO)         /* SIGKILL before the call */                            \
    X(HOW_TORN, "torn", COUNT_IO)         /* SIGKILL after half of the bytes */                    \
    X(HOW_AFTER, "after", COUNT_IO)       /* SIGKILL after the call */                             \
    X(HOW_MEMORY, "memory", COUNT_MEMORY) /* the allocation returns NULL */                        \
    X(HOW_FORWARD, "forward", COUNT_TIME) /* the clock steps a day forward, and stays there */     \
    X(HOW_BACK, "back", COUNT_TIME)

enum fault_counter { COUNT_IO, COUNT_MEMORY, COUNT_TIME, COUNTERS };

enum fault_how {
    HOW_NONE,
#define X(id, name, counter) id,
    FAULTS(X)
#undef X
        HOW_END
};

/* X(identifier, name, faults that a call of this kind can meet, as bits 1 << how) */
#define B(how) (1u << (how))
#define KILLS (B(HOW_KILL) | B(HOW_AFTER))
#define CALLS(X)                                                                                   \
    X(CALL_OPEN, "open", B(HOW_EMFILE) | B(HOW_EIO) | KILLS)                                       \
    X(CALL_CREATE, "create", B(HOW_EMFILE) | B(HOW_ENOSPC) | KILLS)                                \
    X(CALL_READ, "read", B(HOW_EIO) | B(HOW_EINTR) | B(HOW_SHORT) | KILLS)                         \
    X(CALL_WRITE, "write",                                                                         \
      B(HOW_EIO) | B(HOW_ENOSPC) | B(HOW_EINTR) | B(HOW_SHORT) | B(HOW_TORN) | KILLS)              \
    X(CALL_SYNC, "sync", B(HOW_EIO) | KILLS)                                                       \
    X(CALL_RENAME, "rename", B(HOW_EIO) | B(HOW_ENOSPC) | KILLS)                                   \
    X(CALL_LINK, "link", B(HOW_EIO) | KILLS)                                                       \
    X(CALL_UNLINK, "unlink", B(HOW_EIO) | KILLS)                                                   \
    X(CALL_MKDIR, "mkdir", B(HOW_ENOSPC) | KILLS)                                                  \
    X(CALL_TRUNCATE, "truncate", B(HOW_EIO) | B(HOW_EINTR) | KILLS)                                \
    X(CALL_RESERVE, "reserve", B(HOW_ENOSPC) | B(HOW_EINTR) | KILLS)                               \
    X(CALL_CLOSE, "close", B(HOW_EIO) | KILLS)                                                     \
    X(CALL_STAT, "stat", B(HOW_EIO))                                                               \
    X(CALL_LIST, "list", B(HOW_EMFILE) | B(HOW_EIO))                                               \
    X(CALL_LOCK, "lock", B(HOW_EINTR) | B(HOW_EIO))                                                \
    X(CALL_COPY, "duplicate", B(HOW_EMFILE))

enum fault_call {
#define X(id, name, faults) id,
    CALLS(X)
#undef X
        CALL_END /* the last entry of a complete log */
};

/* An entry of the log, followed by its two paths and its bytes. `number` counts calls that can be
 * struck; a call that failed by itself has result < 0. */
struct fault_entry {
    int32_t call, number, result;
    int32_t path_len, to_len, data_len;
    int64_t file, at; /* inode; offset of a write, new size of a truncation or reservation */
    int64_t counts[COUNTERS];
};
