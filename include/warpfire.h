/*
 * warpfire.h: files on a mounted pool, rearranged by moving pointers; at the end, transactions.
 *
 * Each call on files works on a file that is open on the mount, takes place as a whole or not at all, and moves no data. All return 0, or -1 with errno:
 *
 *   ENOTTY  the file is not on a mounted pool
 *   EINVAL  no regular file; an insertion past the end; a time above a day
 *   EACCES  the caller may not read (yank) or may not write (all that change a file) it, however it was opened
 *   EROFS   the mount is read-only
 *   ENOENT  no such slice: never taken by this user on this mount, dropped, or kept for as long as was asked
 *   EAGAIN  too many slices are kept, or too many calls wait: drop some, or ask again
 *   ENOSPC, EFBIG, EIO ...  as for write(2)
 *
 * A slice is a number that stands for a range of bytes as they were when it was taken. It can be used many times, in any file of the mount, whatever becomes of the
 * file that it was taken from, for `seconds` (0: a minute) or until it is dropped.
 *
 * What the kernel has words for is done with those: fallocate(2) with FALLOC_FL_PUNCH_HOLE punches at any byte, and copy_file_range(2) copies any range by
 * pointers. What was written through a mapping is part of the file as of these calls; what is written through one meanwhile may go before or after.
 *
 * Copyright the Warpfire authors. MIT or Apache-2.0, at your choice.
 */
#ifndef WARPFIRE_H
#define WARPFIRE_H

#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WARPFIRE_VERSION 1
#define WARPFIRE_ALL UINT64_MAX /* a length: all that there is */
#define WARPFIRE_AT_END 1u      /* a flag of WARPFIRE_PASTE */

/* What an ioctl passes, and gets back. Fields that a call does not use are 0. */
struct warpfire_slice_args {
    uint32_t version; /* WARPFIRE_VERSION */
    uint32_t flags;   /* WARPFIRE_AT_END or 0 */
    uint64_t offset;  /* in the file; back: where it went */
    uint64_t length;  /* in bytes; back: how many there were */
    uint64_t slice;   /* which; INSERT: 0 for zeros; back: the new one */
    uint64_t other;   /* JOIN: what comes behind */
    uint64_t from;    /* PASTE, INSERT: first byte in the slice */
    uint32_t seconds; /* YANK, JOIN: how long it is kept, 0 for 60 */
    uint32_t reserved;
};

#define WARPFIRE_YANK _IOWR('W', 0x50, struct warpfire_slice_args)
#define WARPFIRE_PASTE _IOWR('W', 0x51, struct warpfire_slice_args)
#define WARPFIRE_INSERT _IOWR('W', 0x52, struct warpfire_slice_args)
#define WARPFIRE_REMOVE _IOWR('W', 0x53, struct warpfire_slice_args)
#define WARPFIRE_REPLACE _IOWR('W', 0x54, struct warpfire_slice_args)
#define WARPFIRE_JOIN _IOWR('W', 0x55, struct warpfire_slice_args)
#define WARPFIRE_DROP _IOWR('W', 0x56, struct warpfire_slice_args)

/*
 * One ioctl. The kernel learns the file's new length when someone asks for it, and appends by the length that it knows: so this asks.
 */
static inline int warpfire_slice_ioctl(int fd, unsigned long number, struct warpfire_slice_args *block)
{
    struct stat status;
    block->version = WARPFIRE_VERSION;
    return ioctl(fd, number, block) == -1 ? -1 : fstat(fd, &status);
}

/* Takes a range of a file, as far as the file goes. */
static inline int warpfire_yank(int fd, uint64_t offset, uint64_t length, uint32_t seconds, uint64_t *slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = length;
    block.seconds = seconds;
    if (warpfire_slice_ioctl(fd, WARPFIRE_YANK, &block) == -1)
        return -1;
    *slice = block.slice;
    return 0;
}

/* Writes a slice over what is at the offset. */
static inline int warpfire_paste(int fd, uint64_t offset, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = WARPFIRE_ALL;
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_PASTE, &block);
}

/* Writes a slice at the end, and says where that was. */
static inline int warpfire_append(int fd, uint64_t slice, uint64_t *offset)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.flags = WARPFIRE_AT_END;
    block.length = WARPFIRE_ALL;
    block.slice = slice;
    if (warpfire_slice_ioctl(fd, WARPFIRE_PASTE, &block) == -1)
        return -1;
    *offset = block.offset;
    return 0;
}

/* Puts a slice between what is before the offset and what follows, which moves up. */
static inline int warpfire_insert(int fd, uint64_t offset, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = WARPFIRE_ALL;
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_INSERT, &block);
}

/* Makes room for a range, which reads as zeros: what follows the offset moves up. */
static inline int warpfire_insert_range(int fd, uint64_t offset, uint64_t length)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = length;
    return warpfire_slice_ioctl(fd, WARPFIRE_INSERT, &block);
}

/* Takes a range out of a file: what follows moves down. */
static inline int warpfire_remove_range(int fd, uint64_t offset, uint64_t length)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = length;
    return warpfire_slice_ioctl(fd, WARPFIRE_REMOVE, &block);
}

/* Makes a file hold a slice and nothing else. With warpfire_join this is how whole files are concatenated, at once. */
static inline int warpfire_replace(int fd, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_REPLACE, &block);
}

/* Makes a slice of two, one after the other; `fd` is any file of the mount. All three are kept for `seconds` from now. */
static inline int warpfire_join(int fd, uint64_t first, uint64_t second, uint32_t seconds, uint64_t *slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.slice = first;
    block.other = second;
    block.seconds = seconds;
    if (warpfire_slice_ioctl(fd, WARPFIRE_JOIN, &block) == -1)
        return -1;
    *slice = block.slice;
    return 0;
}

/* Forgets a slice; `fd` is any file of the mount. */
static inline int warpfire_drop(int fd, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_DROP, &block);
}

/*
 * Transactions: a BEGIN on the mount's root directory, opened for reading, gives the path of a view, in which any program can work. COMMIT makes all that
 * was done there visible at once. docs/IOCTLS.md says what else is defined.
 *
 *   ENOTTY  not the root directory of a mounted pool, or that of a view
 *   EINVAL  another version, or flags that are not known
 *   ENOENT  no such transaction, or another user's; it has ended
 *   EBUSY   COMMIT: something in the view is open, or someone's working directory; it goes on. Or someone is just ending it
 *   EAGAIN  BEGIN: as many are open as there may be
 *   EROFS   BEGIN: the mount is read-only
 *   ENOSPC, EIO ...  COMMIT: as the filesystem says; the transaction has been aborted
 */
struct warpfire_tx_args {
    uint32_t version; /* WARPFIRE_VERSION */
    uint32_t flags;   /* of BEGIN, WARPFIRE_TX_PROCESS_BOUND or 0; of COMMIT, WARPFIRE_TX_DURABLE or 0 */
    uint64_t id;      /* which; back: which */
    uint32_t state;   /* back: one of those below */
    uint32_t uid;     /* back: who began it */
    uint32_t pid;     /* back: the process that it ends with, 0 if none */
    uint32_t idle;    /* back: seconds since its view was last asked for something */
    char call[32];    /* back, after a conflict: the call that would answer otherwise now */
    char path[4096];  /* back: where the view is; after a conflict, what the call was about */
};

#define WARPFIRE_TX_PROCESS_BOUND 1u /* it is aborted when this process ends */
#define WARPFIRE_TX_DURABLE 1u       /* it is on flash on return */

#define WARPFIRE_TX_OPEN 1u
#define WARPFIRE_TX_ENDING 2u
#define WARPFIRE_TX_COMMITTED 3u
#define WARPFIRE_TX_CONFLICT 4u /* nothing has changed; begin again */
#define WARPFIRE_TX_ABORTED 5u
#define WARPFIRE_TX_NOT_DURABLE 6u /* committed, but the pool has failed */

#define WARPFIRE_TX_BEGIN _IOWR('W', 0x40, struct warpfire_tx_args)
#define WARPFIRE_TX_COMMIT _IOWR('W', 0x41, struct warpfire_tx_args)
#define WARPFIRE_TX_ABORT _IOWR('W', 0x42, struct warpfire_tx_args)
#define WARPFIRE_TX_STATUS _IOWR('W', 0x43, struct warpfire_tx_args)
#define WARPFIRE_TX_NEXT _IOWR('W', 0x44, struct warpfire_tx_args) /* STATUS of the first with a greater id */

/* One ioctl: `fd` is the mount's root directory. */
static inline int warpfire_tx_ioctl(int fd, unsigned long number, uint64_t id, uint32_t flags, struct warpfire_tx_args *block)
{
    memset(block, 0, sizeof *block);
    block->version = WARPFIRE_VERSION;
    block->id = id;
    block->flags = flags;
    return ioctl(fd, number, block);
}

/*
 * What a commit would change, some paths at a time: `page` is all zeros at first and passed again until its `count` is 0. In the order of the paths; docs/IOCTLS.md
 * says what is told.
 *
 *   ENOENT  no such transaction, or another user's; it has ended
 *   EBUSY   it is ending, or another call lists its changes right now
 *   ESTALE  someone else has listed them since: begin anew
 *   others  as for STATUS
 */
struct warpfire_diff_page {
    uint32_t version; /* WARPFIRE_VERSION */
    uint32_t flags;   /* 0 */
    uint64_t id;      /* which; 0 on the root of a view: its own */
    uint64_t at;      /* 0: from the first change on; else what came back */
    uint32_t count;   /* 0; back: how many changes there are, 0 at the end */
    uint32_t reserved;
    uint64_t changes[2043]; /* back: `count` times struct warpfire_change and what follows each */
};

struct warpfire_time {
    int64_t seconds;
    uint32_t nanos;
    uint32_t reserved;
};

/* A file as stat shows it. `ino` is 0 if there is none. */
struct warpfire_file {
    uint64_t ino;
    uint64_t size;
    uint64_t allocated; /* bytes that are not holes */
    uint64_t rdev;
    uint32_t mode;
    uint32_t links;
    uint32_t uid;
    uint32_t gid;
    struct warpfire_time atime, mtime, ctime, btime;
};

struct warpfire_change {
    uint32_t bytes;    /* of this change with all that follows it */
    uint8_t how;       /* one of those below */
    uint8_t truncated;       /* 1 if a path is longer than 4095 bytes and was truncated */
    uint16_t differs;  /* the sum of those below */
    uint16_t path;     /* bytes of the path, its NUL too */
    uint16_t other;    /* bytes of the other path, its NUL too; 0 if there is none */
    uint16_t names;    /* bytes of names of extended attributes that differ, their NULs too: the first 16 */
    uint16_t ranges;   /* how many ranges follow: the first 16 */
    uint64_t data_bytes;  /* how many bytes of the file differ ... */
    uint64_t data_ranges; /* ... in how many ranges */
    uint64_t xattrs;   /* how many extended attributes differ */
    struct warpfire_file before, after;
    /* then the ranges, each a uint64_t of the first byte and one of the first behind it; the path, the other path, the names; zeros up to a multiple of 8 */
};

#define WARPFIRE_CREATED 1 /* no `before` */
#define WARPFIRE_DELETED 2 /* no `after`; `path` is where it was */
#define WARPFIRE_RENAMED 3 /* `other` is where it was */
#define WARPFIRE_LINKED 4  /* `other` is another name of the file, if one is known */
#define WARPFIRE_CHANGED 5

#define WARPFIRE_DIFFERS_DATA 1u
#define WARPFIRE_DIFFERS_SIZE 2u
#define WARPFIRE_DIFFERS_MODE 4u
#define WARPFIRE_DIFFERS_OWNER 8u
#define WARPFIRE_DIFFERS_MTIME 16u
#define WARPFIRE_DIFFERS_ATIME 32u
#define WARPFIRE_DIFFERS_XATTRS 64u

#define WARPFIRE_TX_DIFF _IOWR('W', 0x45, struct warpfire_diff_page)

/* One ioctl: `fd` is the mount's root directory, or that of a view. */
static inline int warpfire_diff_ioctl(int fd, uint64_t id, struct warpfire_diff_page *page)
{
    page->version = WARPFIRE_VERSION;
    page->id = id;
    page->count = 0;
    return ioctl(fd, WARPFIRE_TX_DIFF, page);
}

/* The first of a page's `count` changes, which there is if `count` is not 0 ... */
static inline const struct warpfire_change *warpfire_first_change(const struct warpfire_diff_page *page)
{
    return (const struct warpfire_change *)page->changes;
}

/* ... and the one behind another, which there is but after the last. */
static inline const struct warpfire_change *warpfire_next_change(const struct warpfire_change *change)
{
    return (const struct warpfire_change *)((const char *)change + change->bytes);
}

static inline const char *warpfire_change_path(const struct warpfire_change *change)
{
    return (const char *)(change + 1) + 16 * change->ranges;
}

/* NULL if there is none. */
static inline const char *warpfire_change_other(const struct warpfire_change *change)
{
    return change->other ? warpfire_change_path(change) + change->path : NULL;
}

#ifdef __cplusplus
}
#endif

#endif
