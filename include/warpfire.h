/*
 * warpfire.h: rearranges files on a mounted pool by moving pointers; the second part is transactions.
 *
 * Each call on a file works on a file that is open on the mount. It takes effect as a whole or not at all,
 * and moves no data, except bytes of a recent write of up to 32 KiB that are still in metadata. All functions
 * return 0, or -1 with errno:
 *
 *   ENOTTY  the file is not on a mounted pool
 *   EINVAL  no regular file; an insertion past the end; a lease of more than a day
 *   EACCES  the caller may not read (yank) or may not write (calls that change the file) it, however it was opened
 *   EROFS   the mount is read-only
 *   ENOENT  no such slice: it was dropped, its lease has expired, or this user never took it on this mount
 *   EAGAIN  the mount keeps too many slices, or too many calls wait: drop some slices, or try again
 *   EDQUOT  the mount keeps too many slices of this user: drop some
 *   ENOSPC, EFBIG, EIO ...  as for write(2)
 *
 * A slice is a number that stands for the bytes of a range at the time when it was taken. It can be used many
 * times, in any file of the mount, and does not change when the file does. It lasts for its lease: `seconds`
 * (0: a minute), or until it is dropped.
 *
 * The kernel has calls for two related operations: fallocate(2) with FALLOC_FL_PUNCH_HOLE punches holes at
 * any byte, and copy_file_range(2) copies any range by pointers. Bytes that were written through a mapping
 * before a call are part of the file. Bytes written through a mapping during the call may be ordered before
 * or after it.
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
#define WARPFIRE_ALL UINT64_MAX /* a length: up to the end */
#define WARPFIRE_AT_END 1u      /* a flag of WARPFIRE_PASTE */

/* The argument of a slice ioctl; "out" is the answer. Fields that a call does not use must be 0. */
struct warpfire_slice_args {
    uint32_t version; /* WARPFIRE_VERSION */
    uint32_t flags;   /* WARPFIRE_AT_END or 0 */
    uint64_t offset;  /* in the file; out: PASTE: the offset that was written at */
    uint64_t length;  /* in bytes; out: bytes of the slice or the range */
    uint64_t slice;   /* its number; INSERT: 0 for zeros; out: YANK, JOIN: the new number */
    uint64_t other;   /* JOIN: number of the second slice */
    uint64_t from;    /* PASTE, INSERT: first byte in the slice */
    uint32_t seconds; /* YANK, JOIN: the lease, 0 for 60 */
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
 * Makes one ioctl. The kernel learns the new length of the file at the next fstat(2). Until then a mapping
 * reaches only to the old end. So this calls fstat(2).
 */
static inline int warpfire_slice_ioctl(int fd, unsigned long number, struct warpfire_slice_args *block)
{
    struct stat status;
    block->version = WARPFIRE_VERSION;
    if (ioctl(fd, number, block) == -1)
        return -1;
    /* The call has taken effect, whatever this returns. */
    (void)fstat(fd, &status);
    return 0;
}

/* Takes a range of a file as a slice, clipped to the end of the file. */
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

/* Writes a slice over the bytes at an offset. */
static inline int warpfire_paste(int fd, uint64_t offset, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = WARPFIRE_ALL;
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_PASTE, &block);
}

/* Writes a slice at the end, and returns the offset that it was written at. */
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

/* Inserts a slice at an offset. The bytes from there on move up. */
static inline int warpfire_insert(int fd, uint64_t offset, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = WARPFIRE_ALL;
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_INSERT, &block);
}

/* Inserts zeros at an offset. The bytes from there on move up. */
static inline int warpfire_insert_range(int fd, uint64_t offset, uint64_t length)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = length;
    return warpfire_slice_ioctl(fd, WARPFIRE_INSERT, &block);
}

/* Removes a range of a file. The bytes after it move down. */
static inline int warpfire_remove_range(int fd, uint64_t offset, uint64_t length)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.offset = offset;
    block.length = length;
    return warpfire_slice_ioctl(fd, WARPFIRE_REMOVE, &block);
}

/* Replaces the content of a file by a slice. With warpfire_join it concatenates whole files in one commit. */
static inline int warpfire_replace(int fd, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_REPLACE, &block);
}

/* Joins two slices into a new one; `fd` is any file of the mount. All three get a new lease of `seconds`. */
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

/* Ends the lease of a slice; `fd` is any file of the mount. */
static inline int warpfire_drop(int fd, uint64_t slice)
{
    struct warpfire_slice_args block;
    memset(&block, 0, sizeof block);
    block.slice = slice;
    return warpfire_slice_ioctl(fd, WARPFIRE_DROP, &block);
}

/*
 * Transactions. BEGIN on the root directory of the mount, opened for reading, returns the path of a view: a
 * directory in which any program can work. COMMIT makes all changes in it visible at once. docs/IOCTLS.md has
 * all rules.
 *
 *   ENOTTY  not the root directory of a mounted pool, or that of a view
 *   EINVAL  another version, or unknown flags
 *   ENOENT  no such transaction, it has ended, or it is another user's
 *   EBUSY   COMMIT: a file or a working directory in the view is in use; the transaction stays open. With
 *           WARPFIRE_TX_CHAIN up to 64 of them may be in use, but no directory may be listed, and no program
 *           may store into a mapping all the while.
 *           COMMIT, ABORT: another call is ending it
 *   EAGAIN  BEGIN: too many transactions are open
 *   EDQUOT  BEGIN: this user has too many transactions open, or views of ended ones with open files
 *   EROFS   BEGIN: the mount is read-only
 *   EDQUOT, ENOMEM  COMMIT: others have changed something that it read, and there is no memory to repeat its
 *           calls; the transaction has been aborted
 *   ENOSPC, EIO ...  COMMIT: an error of the filesystem; the transaction has been aborted
 */
struct warpfire_tx_args {
    uint32_t version; /* WARPFIRE_VERSION */
    uint32_t flags;   /* BEGIN: WARPFIRE_TX_PROCESS_BOUND; COMMIT: WARPFIRE_TX_DURABLE, WARPFIRE_TX_CHAIN */
    uint64_t id;      /* number of the transaction; BEGIN: 0; out: the number; after CHAIN that of the next one */
    uint32_t state;   /* out: one of the states below */
    uint32_t uid;     /* out: the user that began it */
    uint32_t pid;     /* out: the process that it is bound to, 0 if none */
    uint32_t idle;    /* out: seconds since the last request to its view */
    char call[32];    /* out, after a conflict: the call that would now answer differently */
    char path[4096];  /* out: the path of the view; after a conflict, the path of the call */
};

#define WARPFIRE_TX_PROCESS_BOUND 1u /* aborted when this process ends */
#define WARPFIRE_TX_DURABLE 1u       /* durable on return */
#define WARPFIRE_TX_CHAIN 2u         /* the next transaction begins in the same view, with the files open there */

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

/* Makes one ioctl; `fd` is the root directory of the mount. */
static inline int warpfire_tx_ioctl(int fd, unsigned long number, uint64_t id, uint32_t flags, struct warpfire_tx_args *block)
{
    memset(block, 0, sizeof *block);
    block->version = WARPFIRE_VERSION;
    block->id = id;
    block->flags = flags;
    return ioctl(fd, number, block);
}

/*
 * The changes that a commit would make, page by page, in the order of the paths. Begin with a page of zeros,
 * and pass it again until its `count` is 0. docs/IOCTLS.md defines the changes.
 *
 *   ENOENT  no such transaction, it has ended, or it is another user's
 *   EBUSY   it is beginning or ending, or another call lists its changes
 *   ESTALE  another caller has begun a new listing: begin again with a page of zeros
 *   others  as for STATUS
 */
struct warpfire_diff_page {
    uint32_t version; /* WARPFIRE_VERSION */
    uint32_t flags;   /* 0 */
    uint64_t id;      /* number of the transaction; 0 on the root of a view: its own */
    uint64_t at;      /* 0 for the first page, else as in the last answer */
    uint32_t count;   /* 0; out: number of changes in this page, 0 at the end */
    uint32_t reserved;
    uint64_t changes[2043]; /* out: `count` times a struct warpfire_change and the parts that follow it */
};

struct warpfire_time {
    int64_t seconds;
    uint32_t nanos;
    uint32_t reserved;
};

/* A file as stat(2) shows it. `ino` is 0 if there is none. */
struct warpfire_file {
    uint64_t ino;
    uint64_t size;
    uint64_t allocated; /* bytes outside holes */
    uint64_t rdev;
    uint32_t mode;
    uint32_t links;
    uint32_t uid;
    uint32_t gid;
    struct warpfire_time atime, mtime, ctime, btime;
};

struct warpfire_change {
    uint32_t bytes;       /* length of this change with the parts that follow it */
    uint8_t how;          /* one of the kinds below */
    uint8_t truncated;    /* 1 if a path is longer than 4095 bytes and truncated, else 0 */
    uint16_t differs;     /* the sum of the differences below */
    uint16_t path;        /* length of the path with its NUL */
    uint16_t other;       /* length of the other path with its NUL; 0 if there is none */
    uint16_t names;       /* length of the names of differing extended attributes with their NULs: the first 16 */
    uint16_t ranges;      /* number of ranges that follow: the first 16 */
    uint64_t data_bytes;  /* number of bytes of the file that differ */
    uint64_t data_ranges; /* number of ranges in which they differ */
    uint64_t xattrs;      /* number of extended attributes that differ */
    struct warpfire_file before, after;
    /*
     * Then the ranges, each as a uint64_t offset of its first byte and a uint64_t offset of its end; the
     * path; the other path; the names; zeros up to a multiple of 8.
     */
};

#define WARPFIRE_CREATED 1 /* no `before` */
#define WARPFIRE_DELETED 2 /* no `after`; `path` is the old path */
#define WARPFIRE_RENAMED 3 /* `other` is the old path */
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

/* Makes one ioctl; `fd` is the root directory of the mount or of a view. */
static inline int warpfire_diff_ioctl(int fd, uint64_t id, struct warpfire_diff_page *page)
{
    page->version = WARPFIRE_VERSION;
    page->id = id;
    page->count = 0;
    return ioctl(fd, WARPFIRE_TX_DIFF, page);
}

/* The first change of a page. Valid if `count` is not 0. */
static inline const struct warpfire_change *warpfire_first_change(const struct warpfire_diff_page *page)
{
    return (const struct warpfire_change *)page->changes;
}

/* The change after another one of the same page. Valid for all but the last of the `count` changes. */
static inline const struct warpfire_change *warpfire_next_change(const struct warpfire_change *change)
{
    return (const struct warpfire_change *)((const char *)change + change->bytes);
}

static inline const char *warpfire_change_path(const struct warpfire_change *change)
{
    return (const char *)(change + 1) + 16 * change->ranges;
}

/* The other path of a change; NULL if there is none. */
static inline const char *warpfire_change_other(const struct warpfire_change *change)
{
    return change->other ? warpfire_change_path(change) + change->path : NULL;
}

#ifdef __cplusplus
}
#endif

#endif
